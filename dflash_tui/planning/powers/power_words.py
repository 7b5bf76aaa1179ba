"""What is known of the flags, keys and variables that may do harm, in plain words.

Nothing is allowed or forbidden here: a name that stands nowhere is a power, too, only without words of its own.
"""

from __future__ import annotations

from dflash_tui.planning.powers.power import PowerKind

_Words = tuple[PowerKind, str]


def _tell_each(kind: PowerKind, words: str, names: str) -> dict[str, _Words]:
    return dict.fromkeys(names.split(), (kind, words))


FLAG_WORDS: dict[str, _Words] = {
    **_tell_each(PowerKind.CODE, "runs Python code that comes with the model", "trust-remote-code"),
    **_tell_each(
        PowerKind.CODE,
        "runs Python code that it names",
        """
        io-processor-plugin logits-processors middleware model-class-overrides reasoning-parser-plugin scheduler-cls
        tool-parser-plugin worker-cls worker-extension-cls ec-manager-config additional-config
        """,
    ),
    **_tell_each(PowerKind.CODE, "configures logging, which can run any function", "log-config-file logging-config"),
    **_tell_each(PowerKind.CODE, "chooses which code of the model is run", "code-revision"),
    **_tell_each(
        PowerKind.CODE, "takes weights by what another process or server sends, or by a plug-in", "load-format"
    ),
    **_tell_each(
        PowerKind.PORT,
        "opens further ports, for other processes or machines",
        """
        data-parallel-address data-parallel-backend data-parallel-external-lb data-parallel-hybrid-lb
        data-parallel-multi-port-external-lb data-parallel-rank data-parallel-rpc-port data-parallel-start-rank
        data-parallel-supervisor-port distributed-executor-backend grpc grpc-port headless master-addr master-port
        nnodes node-rank
        """,
    ),
    **_tell_each(
        PowerKind.PORT,
        "hands tokens, caches or weights to other processes or machines",
        "ec-transfer-config kv-events-config kv-offloading-backend kv-transfer-config weight-transfer-config",
    ),
    **_tell_each(
        PowerKind.PORT,
        "lets web pages send requests to the server",
        "allow-credentials allowed-headers allowed-methods allowed-origins",
    ),
    **_tell_each(PowerKind.SENDS, "sends what is asked to another server", "otlp-traces-endpoint tool-server"),
    **_tell_each(PowerKind.STEERS, "lets requests read files of this machine", "allowed-local-media-path"),
    **_tell_each(
        PowerKind.STEERS,
        "takes templates or tensors from requests",
        "enable-mm-embeds enable-prompt-embeds trust-request-chat-template trust-request-mm-kwargs",
    ),
    **_tell_each(PowerKind.STEERS, "writes the text around each prompt", "chat-template"),
    **_tell_each(PowerKind.STEERS, "reads or writes a file that it names", "mm-encoder-fp8-scale-path"),
    **_tell_each(PowerKind.STEERS, "writes into a folder that it names", "download-dir mm-encoder-fp8-scale-save-path"),
}
# Keys inside JSON, at any depth.
KEY_WORDS: dict[str, _Words] = {
    **_tell_each(
        PowerKind.CODE,
        "runs Python code that it names",
        """
        kv_connector_module_path ec_connector_module_path encoder_cache_manager_cls reasoning_parser_plugin backend
        inductor_passes inductor_compile_config auto_map worker_cls scheduler_cls proton_hook
        """,
    ),
    **_tell_each(PowerKind.CODE, "chooses which code of the model is run", "code_revision"),
    **_tell_each(PowerKind.CODE, "runs Python code that comes with the model", "trust_remote_code"),
    **_tell_each(
        PowerKind.STEERS,
        "reads or writes a folder that it names",
        "cache_dir local_cache_dir debug_dump_path download_dir dump_dir proton_profiler_dir torch_profiler_dir",
    ),
}
# Patterns of variables, in any case; the first that is the whole name counts.
VARIABLE_WORDS: tuple[tuple[str, _Words], ...] = (
    (r"LD_.*", (PowerKind.CODE, "loads other libraries, or from other folders")),
    (r"PYTHON.*", (PowerKind.CODE, "makes Python run other code, or from other folders")),
    (r"PATH", (PowerKind.CODE, "takes programs from other folders")),
    (r"GCONV_PATH|LOCPATH|.*_SO_PATH|.*_LIBRARY.*", (PowerKind.CODE, "loads another library")),
    (r"CC|CXX|CPP|LD|AR|.*(?:CFLAGS|CXXFLAGS|LDFLAGS)|CMAKE_.*|NVCC_.*|CUDA_HOME|CUDA_PATH|TRITON_.*_PATH",
     (PowerKind.CODE, "changes how kernels are compiled, and by what")),
    (r".*PLUGIN.*", (PowerKind.CODE, "runs code of plug-ins")),
    (r"VLLM_RUST_FRONTEND_PATH|VLLM_LOGGING_(?:CONFIG_PATH|STREAM)", (PowerKind.CODE, "runs code that it names")),
    (r"VLLM_ALLOW_INSECURE_SERIALIZATION", (PowerKind.CODE, "runs code that is sent to it")),
    (r"HF_HUB_TRUST_REMOTE_CODE|HF_TRUST_REMOTE_CODE", (PowerKind.CODE, "runs Python code that comes with the model")),
    (r"(?:FLASHINFER_CUDA|TORCH_CUDA)_ARCH_LIST|MAX_JOBS", (PowerKind.CODE, "becomes part of a compiler's command")),
    (r"(?-i:DO_NOT_TRACK|VLLM_DO_NOT_TRACK|VLLM_NO_USAGE_STATS|HF_HUB_DISABLE_TELEMETRY)",
     (PowerKind.SENDS, "allows that data on the usage is sent, unless it is 1")),
    (r"(?-i:HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE)", (PowerKind.SENDS, "allows requests to the hub, unless it is 1")),
    (r"VLLM_SERVER_DEV_MODE", (PowerKind.STEERS, "lets requests reconfigure the server")),
    (r"VLLM_ALLOW_RUNTIME_LORA_UPDATING|VLLM_LORA_RESOLVER_.*",
     (PowerKind.STEERS, "loads files that a request names")),
    (r"HF_ENDPOINT|HF_.*_(?:URL|ENDPOINT)|VLLM_USE_MODELSCOPE|MODELSCOPE_.*",
     (PowerKind.SENDS, "asks another server for models, and sends it your token")),
    (r".*PROXY", (PowerKind.SENDS, "sends what goes out through another server")),
    (r"(?:PIP|UV)_.*|.*INDEX_URL", (PowerKind.CODE, "installs packages from elsewhere")),
    (r".*(?:CA_BUNDLE|SSL_CERT_FILE|SSL_CERT_DIR)", (PowerKind.SENDS, "trusts other servers to be who they say")),
    (r"OTEL_.*|S3_.*|AWS_.*|.*(?:URL|ENDPOINT|_SERVER)", (PowerKind.SENDS, "connects to another server")),
    (r".*(?:_HOST|_IP|_PORT|_ADDR|_ADDRESS)", (PowerKind.PORT, "opens further ports, or elsewhere")),
    (r"HF_.*|HUGGINGFACE_.*|TRANSFORMERS_.*", (PowerKind.STEERS, "changes where models and tokens are read")),
    (r"XDG_.*|HOME|TMPDIR|.*(?:CACHE|CACHE_DIR|CACHE_PATH|_DIR|_ROOT|_FOLDER|_PATH|_BASE)",
     (PowerKind.STEERS, "reads and writes elsewhere than in our cache folder; compiled code in it is run")),
)  # fmt: skip
