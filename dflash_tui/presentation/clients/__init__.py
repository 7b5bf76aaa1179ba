"""How clients reach a server and what they show of its answers, as text. Pure."""
