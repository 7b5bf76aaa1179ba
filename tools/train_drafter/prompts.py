"""Prompts by kind: templates filled at random for training, and others, about other things, for the evaluation."""

# ruff: noqa: E501 (lists of words and of wordings)

from __future__ import annotations

import random

TOPICS = """
apples|ants|the atmosphere|bees|bicycles|black holes|blood|bread|bridges|butterflies|cameras|candles|cats|caves|cheese|
chess|chocolate|clocks|clouds|coal|coffee|comets|compasses|computers|copper|corn|cotton|crystals|deserts|diamonds|
dinosaurs|dogs|dolphins|dreams|earthquakes|eclipses|elephants|energy|engines|erosion|evolution|farming|fire|fish|flowers|
fog|forests|fossils|friction|frogs|games|gardens|glaciers|glass|gold|grammar|gravity|habits|health|history|honey|horses|
hurricanes|ice|insects|inventions|iron|islands|jazz|jellyfish|kites|lakes|languages|lasers|leaves|libraries|light|
lightning|lions|machine learning|magnets|maps|markets|medicine|memory|mice|milk|mirrors|money|mountains|mushrooms|music|
neurons|numbers|oceans|oil|olives|orchids|owls|oxygen|painting|paper|parrots|penguins|photosynthesis|pianos|planets|
plastic|poetry|polar bears|pottery|prime numbers|proteins|radio|rain|rainbows|recycling|rice|rivers|robots|rockets|roots|
rust|salt|sand|satellites|seasons|seeds|sharks|ships|silk|sleep|snow|soap|soil|solar panels|sound|spiders|sports|steam|
steel|storms|sugar|sunflowers|swimming|tea|telescopes|tides|tigers|time|tomatoes|traffic|trains|trees|turtles|vaccines|
violins|volcanoes|water|waves|weather|whales|wheat|whiskers|wind|wolves|wood|wool|writing|yeast|zebras
"""
PEOPLE = "Ada|Ben|Carla|David|Elif|Femi|Grace|Hugo|Ines|Jamal|Kim|Lena|Marco|Nina|Omar|Priya|Quentin|Rosa|Sam|Tara"
PLACES = (
    "a small village|a desert town|a lighthouse|an old library|a space station|a mountain hut|a busy city|a ship|"
    "a farm|a castle|a school|a bakery|an island|a train|a forest|a hospital|a museum|a submarine"
)
FUNCTIONS = (
    "reverses a string|checks whether a number is prime|computes the factorial of a number|finds the largest number in a "
    "list|counts the vowels in a string|sorts a list of numbers|removes duplicates from a list|computes the Fibonacci "
    "sequence|checks whether a string is a palindrome|computes the greatest common divisor of two numbers|converts Celsius "
    "to Fahrenheit|counts the words in a text|finds the index of a value with binary search|flattens a nested list|computes "
    "the mean of a list|groups words by their first letter|reads a CSV file|writes a dictionary to a JSON file|computes the "
    "area of a circle|counts how often each character occurs|transposes a matrix|rotates a list by n places|checks whether "
    "two words are anagrams|computes the sum of the digits of a number|validates an email address|splits a list into "
    "chunks|generates a random password|computes the distance between two points|finds the second largest number|"
    "converts a number to binary"
)
LANGUAGES = "Python|Python|Python|Python|JavaScript|Java|C|C++|Go|Rust"
RECORDS = (
    "people with name, age and city|books with title, author and year|cars with make, model and year|films with title, "
    "director and year|cities with name, country and population|fruits with name, color and price|students with name, "
    "grade and subject|planets with name, radius and moons|recipes with name, ingredients and minutes|countries with "
    "name, capital and language|animals with name, species and weight|products with id, name and price|songs with title, "
    "artist and length|employees with name, role and salary|sensors with id, unit and value"
)
THINGS = "apples|books|coins|pencils|cookies|tickets|marbles|eggs|shirts|stamps|bottles|flowers|oranges|boxes|cards"

KINDS = ("question", "code", "json", "math", "count", "story", "summary", "list", "rewrite", "page", "chat")


def pick(rng: random.Random, choices: str) -> str:
    """Return one of the choices, which are separated by bars."""
    return rng.choice([choice.strip() for choice in choices.split("|") if choice.strip()])


def question(rng: random.Random) -> str:
    """Return a question about a topic."""
    topic, other = pick(rng, TOPICS), pick(rng, TOPICS)
    form = pick(
        rng,
        "What are {t}?|Explain {t} in a few sentences.|How do {t} work?|Why are {t} important?|Tell me about {t}.|"
        "What is the difference between {t} and {o}?|Explain {t} to a child.|What is the history of {t}?|"
        "What should I know about {t}?|How are {t} and {o} related?|What are the advantages and disadvantages of {t}?|"
        "Write a short paragraph about {t}.|Describe {t} in detail.|Give an introduction to {t}.|"
        "Explain in a few sentences how {t} change over time.|What happens to {t} in winter?|Define {t}.",
    )
    return form.format(t=topic, o=other)


def code(rng: random.Random) -> str:
    """Return a request for a program."""
    form = pick(
        rng,
        "Write a {l} function that {f}.|Write a {l} program that {f}.|Show me how one {f} in {l}.|"
        "Write a {l} function that {f}, with comments.|Write a {l} function that {f}, with type hints, a docstring and "
        "tests.|Write a {l} class with a method that {f} and one that {g}.|Write {l} code that {f} and then {g}.|"
        "Give an example in {l} that {f}. Explain each step.|Write a unit test for a {l} function that {f}.|"
        "Write a complete {l} module with functions: one {f}, one {g}. Add a main function.",
    )
    return form.format(l=pick(rng, LANGUAGES), f=pick(rng, FUNCTIONS), g=pick(rng, FUNCTIONS))


def json_records(rng: random.Random) -> str:
    """Return a request for JSON."""
    form = pick(
        rng,
        "Give {n} {r} as a JSON array.|Return a JSON array of {n} {r}. Answer with JSON only.|"
        "Write JSON for {n} {r}.|Make up {n} {r} and print them as JSON.|Create a JSON file with {n} {r}.|"
        "Write a JSON object that describes {t}.|Give {n} facts about {t} as a JSON list of objects with the keys id and "
        "fact.|Generate example JSON data: {n} {r}.",
    )
    return form.format(n=rng.randint(2, 20), r=pick(rng, RECORDS), t=pick(rng, TOPICS))


def math(rng: random.Random) -> str:
    """Return a problem of arithmetic."""
    form = pick(
        rng,
        "What is {a} + {b}?|What is {a} times {c}?|What is {b} - {a}?|Compute {a} * {c} step by step.|"
        "{p} has {a} {x} and buys {c} more. How many {x} does {p} have?|A train travels {b} km in {c} hours. What is its "
        "speed?|{p} has {b} {x} and gives {c} to {q}. How many are left? Think step by step.|What is {c} percent of {b}?|"
        "Each box holds {c} {x}. How many {x} are in {a} boxes?|Solve for x: {c}x + {a} = {b}.|What is the area of a "
        "rectangle with sides {a} and {c}?|Write the multiplication table of {c}.|"
        "{p} reads {c} pages a day. How many days does a book of {b} pages take? Show your work.",
    )
    return form.format(
        a=rng.randint(2, 99), b=rng.randint(100, 999), c=rng.randint(2, 20), p=pick(rng, PEOPLE), q=pick(rng, PEOPLE),
        x=pick(rng, THINGS),
    )  # fmt: skip


def count(rng: random.Random) -> str:
    """Return a request whose answer is a plain sequence."""
    form = pick(
        rng,
        "Count from {a} to {b}.|Count from {a} to {b}, one number a line.|Count backwards from {b} to {a}.|"
        "List the even numbers up to {b}.|List the first {n} multiples of {c}.|Write the alphabet.|"
        "Write the numbers from {a} to {b} separated by commas.|Repeat the word {t} {n} times.|"
        "List the days of the week.|List the months of the year.|Write the squares of the numbers from 1 to {n}.|"
        "Print a table of the numbers 1 to {n} and their doubles.",
    )
    start = rng.randint(1, 20)
    return form.format(
        a=start, b=start + rng.randint(10, 80), n=rng.randint(5, 30), c=rng.randint(2, 12), t=pick(rng, TOPICS)
    )


def story(rng: random.Random) -> str:
    """Return a request for a story or a poem."""
    form = pick(
        rng,
        "Tell a story about {p} and {t}.|Write a short story about {p} in {w}.|Write a poem about {t}.|"
        "Write a story about {w} with a happy end.|Tell a story of about three hundred words about {p}, who finds {t} in "
        "{w}.|Write a dialogue between {p} and {q} about {t}.|Write a letter from {p} to {q} about {t}.|"
        "Write a fairy tale about {t}.|Write a diary entry of {p}, who lives in {w}.|Write a song about {t}.",
    )
    return form.format(p=pick(rng, PEOPLE), q=pick(rng, PEOPLE), t=pick(rng, TOPICS), w=pick(rng, PLACES))


def listing(rng: random.Random) -> str:
    """Return a request for a list."""
    form = pick(
        rng,
        "List {n} facts about {t}.|Give {n} tips about {t}.|Name {n} things that have to do with {t}.|"
        "List {n} reasons to learn about {t}.|Give me {n} ideas for a project about {t}.|"
        "List the steps to teach {p} about {t}.|Make a plan of {n} steps for a visit to {w}.|"
        "List {n} questions about {t} with their answers.|Make a table with {n} rows about {t}.|"
        "List the pros and cons of {t}.|Give {n} examples of {t} and explain each.",
    )
    return form.format(n=rng.randint(3, 12), t=pick(rng, TOPICS), p=pick(rng, PEOPLE), w=pick(rng, PLACES))


def page(rng: random.Random) -> str:
    """Return a request for a web page."""
    form = pick(
        rng,
        "Write an HTML page about {t}.|Write a web page with a button that {f}.|Write an HTML form for {r}.|"
        "Write an HTML table of {n} {r}.|Write CSS for a page about {t}.|Create a simple HTML page with a heading, a list "
        "of {n} facts about {t} and a footer.|Write an HTML page with JavaScript that {f}.",
    )
    return form.format(t=pick(rng, TOPICS), f=pick(rng, FUNCTIONS), r=pick(rng, RECORDS), n=rng.randint(2, 10))


def passage(rng: random.Random, topics: str = TOPICS) -> str:
    """Return some plain sentences to work on."""
    sentences = [
        "{p} has studied {t} for {n} years in {w}.",
        "Most people know little about {t}, although they meet them every day.",
        "In {w} there are more {t} than anywhere else.",
        "Last year {p} and {q} wrote a book of {n} pages about {t}.",
        "The price of {t} rose by {n} percent, and nobody could say why.",
        "When it rains, {p} stays at home and reads about {t}.",
        "Experts say that {t} will change how we live.",
        "{q} does not agree and points to {o}.",
        "The first report about {t} was written {n} years ago.",
        "Without {o} there would be no {t}.",
    ]
    chosen = rng.sample(sentences, rng.randint(3, 6))
    topic, other = pick(rng, topics), pick(rng, topics)
    people = {"p": pick(rng, PEOPLE), "q": pick(rng, PEOPLE), "w": pick(rng, PLACES)}
    return " ".join(s.format(t=topic, o=other, n=rng.randint(2, 90), **people) for s in chosen)


def summary(rng: random.Random) -> str:
    """Return a passage and a request to sum it up."""
    form = pick(
        rng,
        "Summarize this text: {x}|{x} Summarize the text above in one sentence.|Sum up in three points: {x}|"
        "What is the main idea of this text? {x}|{x} Answer from the text: who is named in it?|Give this text a title: {x}",
    )
    return form.format(x=passage(rng))


def rewrite(rng: random.Random) -> str:
    """Return a passage and a request to write it in another way."""
    form = pick(
        rng,
        "Rewrite this text in simpler words: {x}|Translate to French: {x}|Translate to Spanish: {x}|"
        "Correct the grammar of this text: {x}|Repeat this text word for word: {x}|Rewrite this in a formal tone: {x}|"
        "Turn this text into a list: {x}|Write this text in capital letters: {x}|Make this text longer: {x}",
    )
    return form.format(x=passage(rng))


MAKERS = {
    "question": question, "code": code, "json": json_records, "math": math, "count": count, "story": story,
    "summary": summary, "list": listing, "rewrite": rewrite, "page": page,
}  # fmt: skip

# Held out of training: other topics and other wordings. `chat` is sampled from the target itself.
HELD_OUT = {
    "question": [
        "Explain in a few sentences how speculative decoding makes a language model faster.",
        "Why is the sky blue?",
        "What does a lawyer do all day?",
        "How does a vending machine know which coin it was given?",
        "Describe the city of Lisbon for somebody who has never been there.",
        "What is inflation and who suffers from it?",
    ],
    "code": [
        "Write a Python function that merges two sorted lists into one sorted list without using sort.",
        "Write a Python class for a bank account with deposit, withdraw and balance.",
        "Write a bash script that prints the ten largest files in a folder.",
        "Implement a stack in Python with push, pop and peek, and show how it is used.",
        "Write a SQL query that returns the three customers who spent most.",
        "Write a Python generator that yields the lines of a file in pairs.",
    ],
    "json": [
        "Give ten fictional restaurants as a JSON array with the keys name, street, stars and dishes. JSON only.",
        "Write a JSON configuration for a web server with host, port, timeout and three routes.",
        "Return five airports as JSON with code, city and runways.",
        "Describe a week of meals as JSON, one object a day.",
    ],
    "math": [
        "A train leaves at 9:40 and arrives at 13:05 after 287 km. What was its mean speed in km/h?",
        "Zoe saves 35 dollars a week. After how many weeks can she buy a bike for 420 dollars? Think step by step.",
        "What is 17 * 23? Show each step.",
        "A pizza is cut into 8 slices and 3 friends eat 2 each. How many are left?",
    ],
    "count": [
        "Count from 3 to 57.",
        "List all multiples of 7 below 150.",
        "Write the numbers from one to twenty in words.",
        "Print the cubes of the numbers from 1 to 15 as a list.",
    ],
    "story": [
        "Tell a story of a keeper who spends the last winter of a lighthouse alone.",
        "Write a poem about a lost umbrella.",
        "Write a story in which a tailor outwits a king.",
        "Write a dialogue between a moon and a lamp.",
    ],
    "list": [
        "List ten things to pack for a week of camping.",
        "Give seven tips for a job interview.",
        "Name eight musical instruments and how each is played.",
        "List the steps to change a flat tyre.",
    ],
    "page": [
        "Write an HTML page for a dentist's office with opening hours and a contact form.",
        "Write a calculator as a single HTML page with JavaScript.",
        "Write an HTML page that shows a traffic light with CSS.",
    ],
}  # fmt: skip
HELD_OUT_TOPICS = "lawyers|umbrellas|elevators|typewriters|hedgehogs|harbours|tunnels|bagpipes|pension funds|chimneys"


def held_out(seed: int = 7) -> list[tuple[str, str]]:
    """Return the evaluation's prompts as pairs of kind and text."""
    rng = random.Random(seed)
    pairs = [(kind, text) for kind, texts in HELD_OUT.items() for text in texts]
    pairs += [("summary", "Summarize this text: " + passage(rng, HELD_OUT_TOPICS)) for _ in range(4)]
    pairs += [("rewrite", "Rewrite this text in simpler words: " + passage(rng, HELD_OUT_TOPICS)) for _ in range(4)]
    return pairs


def draw(rng: random.Random) -> tuple[str, str | None]:
    """Return a kind and a prompt for training; None where the target shall write its user's turn itself."""
    kind = rng.choice(KINDS)
    return kind, None if kind == "chat" else MAKERS[kind](rng)
