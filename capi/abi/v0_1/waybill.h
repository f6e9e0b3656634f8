/* Waybill: updated model weights from trainers to inference workers, by one-sided writes.
 *
 * One controller plans for a job and decides commits; each trainer lends it memory that holds
 * shards of tensors, and publishes versions; each worker shows them, whole or not at all.
 *
 *   context ─┬─ queue        what happens is pulled from it: poll, wait, or a file descriptor
 *            ├─ region       memory that the caller lends
 *            ├─ controller   hosted in this process
 *            ├─ trainer ──── update
 *            └─ worker ───┬─ update
 *                         └─ snapshot
 *   layout, manifest, plan   pure: no context, no network, no thread
 *
 * HANDLES. A handle is a number in a pointer's clothes, and is never dereferenced: one that was
 * destroyed, or is of another kind, is WAYBILL_INVALID_ARGUMENT. Every destroy takes NULL and stale
 * handles, may come in any order (what an object needs of its parents lives until it is gone), and
 * returns when no thread and no device of Waybill's can touch what the caller lent to the object.
 *
 * THREADS. Every function may be called from any thread, at the same time as any other: [any].
 * Functions marked [waits] block, for as long as they say; no others do.
 *
 * STATUS. A function that can fail returns a waybill_status_t and, where that is not WAYBILL_OK and
 * `error` is not NULL, puts an error there that is yours until waybill_error_destroy(). On failure
 * no other output is written. Every function can return, beside what it lists:
 *
 *   WAYBILL_INVALID_ARGUMENT     A handle is stale, NULL or of another kind; an output is NULL; a
 *                                struct_size is smaller than the first release's.
 *   WAYBILL_UNIMPLEMENTED        A newer caller set a field that this library does not know.
 *   WAYBILL_FAILED_PRECONDITION  This process was forked from the one that made the object: nothing
 *                                of Waybill works in it but destroy, which does nothing there.
 *   WAYBILL_RESOURCE_EXHAUSTED   No memory.
 *
 * STRUCTS that the caller fills, or has filled, begin with their size: set it, or use the _INIT
 * macro, which zeroes the rest. They grow at their end only. A zero is the documented default.
 *
 * TIMES are nanoseconds. A deadline is a point of the monotonic clock (waybill_now_ns(), which is
 * CLOCK_MONOTONIC); 0 is the documented default, never infinity.
 *
 * TEXT is UTF-8, ends in a zero, and is copied during the call. NULL is as good as "".
 */
#ifndef WAYBILL_CAPI_WAYBILL_H_
#define WAYBILL_CAPI_WAYBILL_H_

#include <stddef.h>
#include <stdint.h>

#define WAYBILL_ABI_MAJOR 0
#define WAYBILL_ABI_MINOR 1

#if defined(__GNUC__)
#define WAYBILL_API __attribute__((visibility("default")))
#define WAYBILL_MUST_USE __attribute__((warn_unused_result))
#else
#define WAYBILL_API
#define WAYBILL_MUST_USE
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status and errors ---- */

/* The numbers of absl::Status and gRPC; they never change. */
typedef int32_t waybill_status_t;
enum {
  WAYBILL_OK = 0,
  WAYBILL_CANCELLED = 1,
  WAYBILL_UNKNOWN = 2,
  WAYBILL_INVALID_ARGUMENT = 3,
  WAYBILL_DEADLINE_EXCEEDED = 4,
  WAYBILL_NOT_FOUND = 5,
  WAYBILL_ALREADY_EXISTS = 6,
  WAYBILL_PERMISSION_DENIED = 7,
  WAYBILL_RESOURCE_EXHAUSTED = 8,
  WAYBILL_FAILED_PRECONDITION = 9,
  WAYBILL_ABORTED = 10,
  WAYBILL_OUT_OF_RANGE = 11,
  WAYBILL_UNIMPLEMENTED = 12,
  WAYBILL_INTERNAL = 13,
  WAYBILL_UNAVAILABLE = 14,
  WAYBILL_DATA_LOSS = 15,
  WAYBILL_UNAUTHENTICATED = 16
};

/* How far an error reaches. */
enum {
  WAYBILL_SCOPE_CALL = 1,   /* This call failed; everything else goes on. */
  WAYBILL_SCOPE_UPDATE = 2, /* This version will not be shown; the next may be. */
  WAYBILL_SCOPE_PEER = 3,   /* One peer is gone; its lanes are rebuilt in another epoch. */
  WAYBILL_SCOPE_ENGINE = 4  /* Nothing on this rank works any more. */
};

typedef struct waybill_error waybill_error_t;
typedef struct waybill_blob waybill_blob_t;
typedef struct waybill_context waybill_context_t;
typedef struct waybill_queue waybill_queue_t;
typedef struct waybill_region waybill_region_t;
typedef struct waybill_manifest waybill_manifest_t;
typedef struct waybill_layout waybill_layout_t;
typedef struct waybill_plan waybill_plan_t;
typedef struct waybill_controller waybill_controller_t;
typedef struct waybill_trainer waybill_trainer_t;
typedef struct waybill_worker waybill_worker_t;
typedef struct waybill_update waybill_update_t;
typedef struct waybill_snapshot waybill_snapshot_t;

/* "0.1.0", of the library that is loaded. Static. */
WAYBILL_API const char* waybill_version(void);
/* WAYBILL_ABI_MAJOR << 16 | WAYBILL_ABI_MINOR of the library that is loaded. */
WAYBILL_API uint32_t waybill_abi_version(void);
/* "INVALID_ARGUMENT"; "UNKNOWN" for a number that is none. Static. */
WAYBILL_API const char* waybill_status_name(waybill_status_t status);
/* The monotonic clock that deadlines are measured by, in nanoseconds. */
WAYBILL_API int64_t waybill_now_ns(void);

/* An error never changes. Of a handle that is none: WAYBILL_INVALID_ARGUMENT, "",
 * WAYBILL_SCOPE_CALL. */
WAYBILL_API waybill_status_t waybill_error_code(const waybill_error_t* error);
/* What was being done, to what, what was found, what is allowed. Until the error is destroyed. */
WAYBILL_API const char* waybill_error_message(const waybill_error_t* error);
WAYBILL_API uint32_t waybill_error_scope(const waybill_error_t* error);
WAYBILL_API void waybill_error_destroy(waybill_error_t* error);

/* Bytes that the library made. They never change; a zero that size does not count follows them, so
 * that text is text. Of a handle that is none: NULL and 0. Until the blob is destroyed. */
WAYBILL_API const void* waybill_blob_data(const waybill_blob_t* blob);
WAYBILL_API size_t waybill_blob_size(const waybill_blob_t* blob);
WAYBILL_API void waybill_blob_destroy(waybill_blob_t* blob);

/* ---- context ---- */

/* A line of the log: what was chosen and why, and what fell back. `level` 1 is information, 2 a
 * warning. On any thread, also of the library's, several at once; it must not call the library, nor
 * let an exception out. `line` lives during the call only. */
typedef void (*waybill_log_sink_t)(void* user, uint32_t level, const char* line);

typedef struct waybill_context_options {
  size_t struct_size;
  waybill_log_sink_t log_sink; /* NULL: nothing is logged. */
  void* log_user; /* Passed to the sink; lives until the context's last child is gone. */
} waybill_context_options_t;
#define WAYBILL_CONTEXT_OPTIONS_INIT {sizeof(waybill_context_options_t), NULL, NULL}

/* What the objects of one user share. `options` may be NULL. Any number may exist. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_context_create(const waybill_context_options_t* options, waybill_context_t** out_context,
                       waybill_error_t** error);

/* What this host and this build can do, as JSON: version, SIMD targets, fabrics (or why not), GPUs
 * (or why not). [waits] for devices to answer, some milliseconds. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_context_describe(
    const waybill_context_t* context, waybill_blob_t** out_json, waybill_error_t** error);

/* What RDMA and large memory need of this host, looked at and explained, as JSON: a list of
 * subject, level ("good", "note", "bad"), found, remedy. What `waybill doctor` prints. [waits]
 * likewise. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_context_examine(
    const waybill_context_t* context, waybill_blob_t** out_json, waybill_error_t** error);

/* Nothing new can be made from it; what was made from it lives on. */
WAYBILL_API void waybill_context_destroy(waybill_context_t* context);

/* ---- queue and events ---- */

enum {
  /* One for each accepted call, with the call's token and `status`. */
  WAYBILL_EVENT_JOINED = 1,    /* Of a join or rejoin. */
  WAYBILL_EVENT_PUBLISHED = 2, /* Of a publish: SENT, or COMMITTED where it was asked for. */
  WAYBILL_EVENT_LEFT = 3,      /* Of a leave. */
  WAYBILL_EVENT_POSTED = 4,    /* Of waybill_queue_post(). */

  /* Notices; their token is 0. Those of a worker come in this order. */
  WAYBILL_EVENT_PREPARE = 16, /* Pause what must be paused, then accept or refuse. */
  WAYBILL_EVENT_ARRIVED = 17, /* All of it is here and verified: accept or veto. */
  WAYBILL_EVENT_COMMIT = 18,  /* It is shown: run what comes after loading, then accept. */
  WAYBILL_EVENT_ABORT =
      19, /* It will not be, `status` says why. In place the engine stays paused. */
  WAYBILL_EVENT_OUTCOME = 20, /* Of a trainer: what became of a version in `group`. */
  WAYBILL_EVENT_ENDED = 21    /* The controller is gone, or has dismissed this rank; says why. */
};

/* Which object an event is of. */
enum { WAYBILL_SOURCE_TRAINER = 1, WAYBILL_SOURCE_WORKER = 2, WAYBILL_SOURCE_QUEUE = 3 };

typedef struct waybill_event {
  size_t struct_size;
  uint32_t kind;            /* WAYBILL_EVENT_*. */
  uint32_t source;          /* WAYBILL_SOURCE_*. */
  uint64_t token;           /* The call's, or 0. */
  uint64_t user;            /* As the options of the trainer or the worker have it. */
  uint64_t version;         /* Of an update. */
  waybill_status_t status;  /* Of calls, ABORT, OUTCOME, ENDED. */
  uint32_t answer_wanted;   /* 1: the update waits for waybill_update_accept() or _refuse(). */
  uint64_t pause_ns;        /* Of COMMIT: what copying took, in shadow-copy. */
  waybill_update_t* update; /* Yours; of PREPARE to ABORT, else NULL. */
  waybill_error_t* error;   /* Yours; NULL where status is WAYBILL_OK. */
  waybill_blob_t* group;    /* Yours; of OUTCOME: the group's name. */
} waybill_event_t;
#define WAYBILL_EVENT_INIT {sizeof(waybill_event_t), 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL}

/* Trainers and workers put what happens into the queue that they were given; one may serve many. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_queue_create(waybill_context_t* context,
                                                                   waybill_queue_t** out_queue,
                                                                   waybill_error_t** error);

/* Takes the oldest event. WAYBILL_NOT_FOUND: there is none (no error object is made). */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_queue_poll(waybill_queue_t* queue,
                                                                 waybill_event_t* out_event,
                                                                 waybill_error_t** error);

/* The same, and waits for one. [waits] until `deadline_ns`; 0: 60 s from now.
 *
 * WAYBILL_DEADLINE_EXCEEDED  There was none; no error object is made. One of the past only looks.
 * WAYBILL_CANCELLED          The queue was destroyed meanwhile. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_queue_wait(waybill_queue_t* queue,
                                                                 int64_t deadline_ns,
                                                                 waybill_event_t* out_event,
                                                                 waybill_error_t** error);

/* Readable as long as there are events: for poll(2) and its like. The queue's; do not read or close
 * it. -1 of a handle that is none. */
WAYBILL_API int waybill_queue_fd(const waybill_queue_t* queue);

/* Puts a POSTED event there, to wake who waits. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_queue_post(waybill_queue_t* queue,
                                                                 uint64_t token,
                                                                 waybill_error_t** error);

/* Destroys what belongs to the event, and zeroes it but for struct_size. NULL is taken. */
WAYBILL_API void waybill_event_release(waybill_event_t* event);

/* Events that were not taken are dropped, and so are later ones of objects that use it. */
WAYBILL_API void waybill_queue_destroy(waybill_queue_t* queue);

/* ---- memory ---- */

enum { WAYBILL_MEMORY_HOST = 1, WAYBILL_MEMORY_PINNED = 2, WAYBILL_MEMORY_DEVICE = 3 };

typedef struct waybill_region_options {
  size_t struct_size;
  void* data; /* Lent until waybill_region_destroy() has returned. */
  uint64_t size_bytes;
  uint32_t kind;      /* WAYBILL_MEMORY_*; 0: host. */
  uint32_t read_only; /* 1: no worker may use it. */
  const char* name;   /* For errors. */
} waybill_region_options_t;
#define WAYBILL_REGION_OPTIONS_INIT {sizeof(waybill_region_options_t), NULL, 0, 0, 0, NULL}

/* Memory of the caller's, for trainers to read and workers to write. All that is memory of a device
 * is of one device in a rank. A trainer's is read by kernels of that device, on streams of
 * Waybill's own, and the device is never waited for as a whole. A worker's is copied to at COMMIT
 * (WAYBILL_MODE_SHADOW_COPY); what is on the device's streams then must have ended.
 *
 * WAYBILL_INVALID_ARGUMENT  `data` is NULL and size_bytes is not 0, or they overflow; memory said
 * to be a device's that is not. WAYBILL_UNAVAILABLE       Memory of a device, and no driver for it;
 * says what was looked for. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_region_create(waybill_context_t* context, const waybill_region_options_t* options,
                      waybill_region_t** out_region, waybill_error_t** error);

/* The memory is the caller's again when it returns: ranks that use it are made to leave first.
 * [waits] for them, a few seconds at most. */
WAYBILL_API void waybill_region_destroy(waybill_region_t* region);

/* ---- manifests: what one rank holds ---- */

/* Types of elements. The numbers never change. */
enum {
  WAYBILL_F32 = 1,
  WAYBILL_F16 = 2,
  WAYBILL_BF16 = 3,
  WAYBILL_F8_E4M3 = 4, /* OCP E4M3 without infinities: torch.float8_e4m3fn. */
  WAYBILL_F8_E5M2 = 5,
  WAYBILL_E8M0 = 6,
  WAYBILL_I8 = 7,
  WAYBILL_U8 = 8,
  WAYBILL_I16 = 9,
  WAYBILL_U16 = 10,
  WAYBILL_I32 = 11,
  WAYBILL_U32 = 12,
  WAYBILL_I64 = 13,
  WAYBILL_U64 = 14,
  WAYBILL_F64 = 15,
  WAYBILL_BOOL = 16
};
/* Bytes of one element; 0 for a number that is none. */
WAYBILL_API uint32_t waybill_dtype_size(uint32_t dtype);
/* "BF16", as safetensors spells it; "" for a number that is none. Static. */
WAYBILL_API const char* waybill_dtype_name(uint32_t dtype);

#define WAYBILL_MAX_DIMENSIONS 8

/* What of a tensor a shard holds. */
enum {
  WAYBILL_CONTENT_PLAIN = 0,     /* Its elements. */
  WAYBILL_CONTENT_QUANTISED = 1, /* Its elements, quantised. */
  WAYBILL_CONTENT_SCALES = 2     /* The scales of its quantised elements; the box counts scales. */
};

/* How elements of a matrix are stored in few bits with a scale for each block; a tensor's last two
 * dimensions are the matrix. All zeros but struct_size is what DeepSeek-V3's checkpoints have. */
typedef struct waybill_quantisation {
  size_t struct_size;
  uint32_t dtype;       /* Of the elements; 0: F8_E4M3. */
  uint32_t from_dtype;  /* Elements are rounded to this first; 0: BF16. */
  uint32_t scale_dtype; /* 0: F32. */
  uint32_t rounding;    /* Of scales; 0 or 1: none; 2: up to a power of two; 3: as MX has it. */
  uint32_t division;    /* 0 or 1: x * (1 / s); 2: x * (largest / magnitude); 3: x / s. */
  uint32_t stores_reciprocal; /* 1: 1 / s is stored instead of s. */
  float epsilon;              /* Of the largest magnitude; 0: 1e-4. Negative: none. */
  uint32_t block_rows;        /* 0: 128; UINT32_MAX: the whole matrix. */
  uint32_t block_columns;     /* Likewise. */
  uint32_t scale_rows;        /* A scale is stored for each so many rows; 0: the block's. */
  uint32_t scale_columns;
} waybill_quantisation_t;
#define WAYBILL_QUANTISATION_INIT \
  {sizeof(waybill_quantisation_t), 0, 0, 0, 0, 0, 0, 0.0f, 0, 0, 0, 0}

/* "fp8-block", "fp8-row", "fp8-tensor", "mxfp8"; the error lists them. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_quantisation_named(
    const char* name, waybill_quantisation_t* out_quantisation, waybill_error_t** error);

/* A box of a tensor, and where this rank holds it. Arrays have `dimensions` entries, slowest first;
 * they are read during the call only. */
typedef struct waybill_shard {
  size_t struct_size;
  uint32_t tensor_index;
  uint32_t region_index;
  uint64_t offset_bytes;                      /* Of the box's first element, in the region. */
  uint32_t dtype;                             /* 0: the tensor's, or the quantisation's. */
  uint32_t content;                           /* WAYBILL_CONTENT_*. */
  const waybill_quantisation_t* quantisation; /* NULL for plain content. */
  uint32_t dimensions;                        /* 0 with NULL boxes: all of the tensor. */
  uint32_t reserved;
  const int64_t* begin; /* The box, half-open; NULL: the whole tensor. */
  const int64_t* end;
  const int64_t* strides; /* In elements; NULL: dense, last dimension fastest. */
  /* NULL: elements lie as the strides say. Else the name ("marlin", say) of an order of the
   * engine's own into which its step after loading has put them: joining and planning then refuse,
   * with that name and what to receive instead. */
  const char* engine_order;
} waybill_shard_t;
#define WAYBILL_SHARD_INIT \
  {sizeof(waybill_shard_t), 0, 0, 0, 0, 0, NULL, 0, 0, NULL, NULL, NULL, NULL}

/* Elements of a region that no tensor fills: zeros, outside of the plan. */
typedef struct waybill_padding {
  size_t struct_size;
  uint32_t region_index;
  uint32_t element_bytes; /* 0: 1. */
  uint64_t offset_bytes;
  uint32_t dimensions;
  uint32_t reserved;
  const int64_t* extents;
  const int64_t* strides; /* In elements; NULL: dense. */
} waybill_padding_t;
#define WAYBILL_PADDING_INIT {sizeof(waybill_padding_t), 0, 0, 0, 0, 0, NULL, NULL}

/* Empty. It is copied by whatever takes it, and may be changed and used again. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_manifest_create(waybill_manifest_t** out_manifest, waybill_error_t** error);

/* Each of these writes the index of what it added, counted from 0, unless out_index is NULL.
 * What needs the whole manifest (names used twice, places outside their regions, sizes that
 * overflow) is checked where it is used.
 *
 * WAYBILL_INVALID_ARGUMENT  An empty name, an index that is none, a negative extent, more than
 *                           WAYBILL_MAX_DIMENSIONS, a box that is no range. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_manifest_add_region(waybill_manifest_t* manifest, const char* name, uint64_t size_bytes,
                            uint32_t* out_index, waybill_error_t** error);
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_manifest_add_tensor(
    waybill_manifest_t* manifest, const char* name, uint32_t dtype, const int64_t* shape,
    uint32_t dimensions, uint32_t* out_index, waybill_error_t** error);
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_manifest_add_shard(waybill_manifest_t* manifest, const waybill_shard_t* shard,
                           uint32_t* out_index, waybill_error_t** error);
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_manifest_add_padding(waybill_manifest_t* manifest, const waybill_padding_t* padding,
                             uint32_t* out_index, waybill_error_t** error);
/* Another name of a tensor (a tied head): nothing moves for it. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_manifest_add_alias(waybill_manifest_t* manifest, const char* name, uint32_t tensor_index,
                           uint32_t* out_index, waybill_error_t** error);

/* 0 for an index or a handle that is none. */
WAYBILL_API uint32_t waybill_manifest_region_count(const waybill_manifest_t* manifest);
WAYBILL_API uint64_t waybill_manifest_region_size(const waybill_manifest_t* manifest,
                                                  uint32_t region_index);

/* As it travels to the controller; equal manifests give equal bytes on every host. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_manifest_encode(
    const waybill_manifest_t* manifest, waybill_blob_t** out_bytes, waybill_error_t** error);
/* WAYBILL_DATA_LOSS or WAYBILL_INVALID_ARGUMENT  These bytes are no manifest. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_manifest_decode(const void* data, size_t size_bytes, waybill_manifest_t** out_manifest,
                        waybill_error_t** error);
/* As JSON: regions, tensors, shards with format, box and place, padding, aliases. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_manifest_describe(
    const waybill_manifest_t* manifest, waybill_blob_t** out_json, waybill_error_t** error);
WAYBILL_API void waybill_manifest_destroy(waybill_manifest_t* manifest);

/* ---- layouts: manifests made from a model ---- */

typedef struct waybill_layout_options {
  size_t struct_size;
  const char* checkpoint; /* A Hugging Face directory: config.json, safetensors. Or else: */
  const char* model;      /* A made-up model: "qwen3-0.6b", "gpt2", ...; it has no data. */
  uint32_t layers;        /* Of a made-up model: cut to so many; 0: all. */
  uint32_t reserved;
} waybill_layout_options_t;
#define WAYBILL_LAYOUT_OPTIONS_INIT {sizeof(waybill_layout_options_t), NULL, NULL, 0, 0}

/* A model's tensors, and how frameworks name, fuse and shard them. It never changes.
 *
 * WAYBILL_NOT_FOUND, WAYBILL_INVALID_ARGUMENT  Names the file, and the tensor. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_layout_open(const waybill_layout_options_t* options, waybill_layout_t** out_layout,
                    waybill_error_t** error);
/* What trainer `rank` holds, in one region "weights". `sharding`: "fsdp=2,tp=2,pp=1,dp=1"; what is
 * not named is 1. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_layout_trainer_manifest(const waybill_layout_t* layout, const char* sharding, uint32_t rank,
                                waybill_manifest_t** out_manifest, waybill_error_t** error);
/* What worker `rank` holds as vLLM loads it, in one region "weights". `sharding`: "tp=2,dp=1".
 * `format`: "bf16" or a name of waybill_quantisation_named(); "": what config.json says. `dtype`:
 * of what is not quantised ("BF16"); "": as stored. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_layout_worker_manifest(
    const waybill_layout_t* layout, const char* sharding, uint32_t rank, const char* format,
    const char* dtype, waybill_manifest_t** out_manifest, waybill_error_t** error);
/* The engine's parameters of that worker, in its order, as JSON: name, dtype, shape, region,
 * offset. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_layout_worker_parameters(
    const waybill_layout_t* layout, const char* sharding, uint32_t rank, const char* format,
    const char* dtype, waybill_blob_t** out_json, waybill_error_t** error);
/* Fills region 0 of the manifest, which lies at `data`, from the checkpoint.
 *
 * WAYBILL_FAILED_PRECONDITION  A made-up model has no data. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_layout_load(const waybill_layout_t* layout, const waybill_manifest_t* manifest, void* data,
                    uint64_t size_bytes, waybill_error_t** error);
WAYBILL_API void waybill_layout_destroy(waybill_layout_t* layout);

/* ---- plans ---- */

typedef struct waybill_plan_options {
  size_t struct_size;
  const waybill_manifest_t* const* trainers; /* The index is the rank. */
  const waybill_manifest_t* const* workers;
  uint32_t trainer_count;
  uint32_t worker_count;
  uint64_t smallest_piece_bytes; /* Of what several trainers hold, and share out; 0: 64 KiB. */
} waybill_plan_options_t;
#define WAYBILL_PLAN_OPTIONS_INIT {sizeof(waybill_plan_options_t), NULL, NULL, 0, 0, 0}

typedef struct waybill_plan_summary {
  size_t struct_size;
  uint64_t hash;  /* Equal plans, equal hashes, on every host. */
  uint64_t bytes; /* That arrive at workers in each update. */
  uint64_t routes;
  uint64_t writes; /* That the routes become where nothing can be mapped. */
  uint64_t maxima; /* Of split quantisation blocks, traded between trainers. */
  uint64_t maxima_messages;
  double
      busiest_to_bound; /* The busiest rank over the lower bound of any assignment; 1 is perfect. */
  double busiest_to_mean; /* The busiest trainer over the mean. */
} waybill_plan_summary_t;
#define WAYBILL_PLAN_SUMMARY_INIT {sizeof(waybill_plan_summary_t), 0, 0, 0, 0, 0, 0, 0.0, 0.0}

/* Builds the routing tables. Pure: reads only its arguments, opens nothing.
 *
 * The same manifests in the same order give the same plan, byte for byte, on every host.
 *
 *   options   Read during the call only.
 *   out_plan  Yours, until waybill_plan_destroy(). Immutable.
 *
 * WAYBILL_INVALID_ARGUMENT  A byte of a worker's that no trainer can fill, or several manifests
 * that do not fit together: names the tensor, the worker and both ranges. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_plan_build(
    const waybill_plan_options_t* options, waybill_plan_t** out_plan, waybill_error_t** error);
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_plan_summarise(
    const waybill_plan_t* plan, waybill_plan_summary_t* out_summary, waybill_error_t** error);
/* `format`: "text", a table for people; "json"; "routes", JSON with every route. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_plan_explain(const waybill_plan_t* plan,
                                                                   const char* format,
                                                                   waybill_blob_t** out_text,
                                                                   waybill_error_t** error);
WAYBILL_API void waybill_plan_destroy(waybill_plan_t* plan);

/* ---- controller ---- */

typedef struct waybill_controller_options {
  size_t struct_size;
  const char* listen;       /* Address and port; port 0 takes a free one. "": "127.0.0.1:7070". */
  const char* job;          /* "": "waybill". */
  const char* token;        /* What every rank has to show; needed beyond loopback. */
  const char* decision_log; /* A file; "": decisions die with this process. */
  uint32_t trainers;        /* How many are demanded; 0: as many as they declare. */
  uint32_t workers;
  int64_t join_timeout_ns; /* From the first rank's coming until all are there; 0: 120 s. */
} waybill_controller_options_t;
#define WAYBILL_CONTROLLER_OPTIONS_INIT \
  {sizeof(waybill_controller_options_t), NULL, NULL, NULL, NULL, 0, 0, 0}

/* A controller in this process; it serves until it is destroyed.
 *
 * WAYBILL_UNAVAILABLE       The address cannot be had, or the log is another controller's.
 * WAYBILL_INVALID_ARGUMENT  An address beyond loopback without a token. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_controller_start(waybill_context_t* context, const waybill_controller_options_t* options,
                         waybill_controller_t** out_controller, waybill_error_t** error);
/* "127.0.0.1:40123": where ranks connect to. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_controller_address(
    const waybill_controller_t* controller, waybill_blob_t** out_address, waybill_error_t** error);
/* What the job is doing, as JSON: phase, versions, ranks, lanes, NICs. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_controller_status(
    const waybill_controller_t* controller, waybill_blob_t** out_json, waybill_error_t** error);
/* The same of a controller anywhere. [waits] until deadline_ns; 0: 5 s from now.
 *
 * WAYBILL_UNAVAILABLE      Nobody answers there.
 * WAYBILL_UNAUTHENTICATED  The token is wrong. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_controller_query(waybill_context_t* context, const char* address, const char* token,
                         int64_t deadline_ns, waybill_blob_t** out_json, waybill_error_t** error);
/* Ranks are told. [waits] for them to hear it, a second at most. */
WAYBILL_API void waybill_controller_destroy(waybill_controller_t* controller);

/* ---- ranks ---- */

/* Who a rank is, and how it reaches others. Declared, never inferred. */
typedef struct waybill_rank_options {
  size_t struct_size;
  const char* controller; /* Address and port; "": "127.0.0.1:7070". */
  const char* job;        /* "": "waybill". */
  const char* token;
  const char* group; /* Of a worker: those of one group switch together; "": "all". */
  uint32_t rank;
  uint32_t world;       /* How many ranks of this role there are; 0: 1. */
  const char* fabric;   /* "auto" or "", "local", "verbs", "tcp". */
  const char* host;     /* This host's numeric address; "": as seen on the way to the controller. */
  const char* nics;     /* RDMA devices, "mlx5_0,mlx5_1:2"; "": every active port. */
  uint32_t gid_index;   /* 1 + the index; 0: by rule. */
  uint32_t ack_timeout; /* Of queue pairs, 1 to 31; 0: 14, and 18 on SoftRoCE. */
  uint32_t traffic_class; /* Of RoCE packets. */
  uint32_t reserved;
  uint64_t user; /* Comes back in every event of the rank. */
} waybill_rank_options_t;
#define WAYBILL_RANK_OPTIONS_INIT \
  {sizeof(waybill_rank_options_t), NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, 0, 0, 0, 0, 0}

/* Stages of an update on a rank, as indices of waybill_progress_t's times. */
enum {
  WAYBILL_STAGE_EXCHANGE = 0, /* A trainer: maxima of split blocks are worked out and traded. */
  WAYBILL_STAGE_STAGE = 1,    /* Copies, casts, quantises. */
  WAYBILL_STAGE_POST = 2,     /* Chunks are handed to the network. */
  WAYBILL_STAGE_WAIT = 3,     /* All is handed over, and not all of it is complete. */
  WAYBILL_STAGE_RECEIVE = 4,  /* A worker: ready, and not everything is here. */
  WAYBILL_STAGE_VERIFY = 5,   /* Digests what has come. */
  WAYBILL_STAGE_COMMIT = 6    /* From the decision to the version's being shown. */
};
#define WAYBILL_STAGE_COUNT 7

/* How far the latest update of a rank has come. Counts of equal plans are equal. */
typedef struct waybill_progress {
  size_t struct_size;
  uint64_t version;
  uint64_t planned_bytes; /* That this rank sends, or receives, in every update. */
  uint64_t bytes;         /* Handed to the network or stored; of a worker: verified. */
  uint64_t writes;        /* Of a trainer, as is what follows. Posted to a network. */
  uint64_t stores;        /* Chunks stored at their final address through a mapping. */
  uint64_t immediates;
  uint64_t maxima_messages; /* To other trainers. */
  uint64_t maxima_bytes;
  uint64_t nonfinite;                    /* NaNs and infinities among what was quantised. */
  int64_t begin_ns[WAYBILL_STAGE_COUNT]; /* waybill_now_ns()'s clock; 0: not there, or not yet. */
  int64_t end_ns[WAYBILL_STAGE_COUNT];
} waybill_progress_t;
#define WAYBILL_PROGRESS_INIT {sizeof(waybill_progress_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}}

/* ---- trainer ---- */

typedef struct waybill_trainer_options {
  size_t struct_size;
  const waybill_rank_options_t* rank;
  const waybill_manifest_t* manifest;
  waybill_region_t* const* regions; /* One for each region of the manifest, as large. */
  uint32_t region_count;
  uint32_t stage_threads; /* 0: 1, or 4 where regions are memory of a device. */
  uint64_t ring_bytes;    /* Bound of the staging ring; 0: 32 MiB. */
  waybill_queue_t* queue;
} waybill_trainer_options_t;
#define WAYBILL_TRAINER_OPTIONS_INIT \
  {sizeof(waybill_trainer_options_t), NULL, NULL, NULL, 0, 0, 0, NULL}

/* A rank that holds new weights. Nothing is opened before waybill_trainer_join(). Its calls are
 * carried out one after the other, in the order they came in.
 *
 * WAYBILL_INVALID_ARGUMENT  The manifest is wrong, or the regions are not as it says; names them.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_trainer_create(waybill_context_t* context, const waybill_trainer_options_t* options,
                       waybill_trainer_t** out_trainer, waybill_error_t** error);

/* Joins the job. One JOINED event with `token` follows: when all ranks are there and every lane
 * carries, or by `deadline_ns` (0: 120 s from now).
 *
 * WAYBILL_FAILED_PRECONDITION  It has joined, or left: make another trainer.
 * WAYBILL_DEADLINE_EXCEEDED    The deadline is in the past.
 * In the event:
 * WAYBILL_UNAVAILABLE        No controller.
 * WAYBILL_UNAUTHENTICATED    A wrong token.
 * WAYBILL_ALREADY_EXISTS     This rank is there already.
 * WAYBILL_DEADLINE_EXCEEDED  Names who is missing.
 * WAYBILL_INVALID_ARGUMENT   The ranks' manifests do not fit together. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_trainer_join(waybill_trainer_t* trainer,
                                                                   int64_t deadline_ns,
                                                                   uint64_t token,
                                                                   waybill_error_t** error);

typedef struct waybill_publish_options {
  size_t struct_size;
  uint64_t version;           /* Later than what is committed. */
  int64_t deadline_ns;        /* 0: 60 s from now. */
  uint32_t until_committed;   /* 1: the event comes, and the memory is lent, until all groups have
                                 decided; else until it is SENT. */
  uint32_t no_digests;        /* 1: what arrives is not verified. */
  uint32_t fail_on_nonfinite; /* 1: show nothing where NaNs or infinities are quantised. */
  uint32_t reserved;
  void* after_event; /* A CUevent, which cudaEvent_t is too: the regions are not read before what it
                        was last recorded behind is done. It may be recorded again, or destroyed,
                        when the call has returned. NULL: they may be read at once. */
} waybill_publish_options_t;
#define WAYBILL_PUBLISH_OPTIONS_INIT {sizeof(waybill_publish_options_t), 0, 0, 0, 0, 0, 0, NULL}

/* Sends a version; every trainer of the job calls it with the same one. The regions must not change
 * until the PUBLISHED event with `token`, and may afterwards, however it ends. An OUTCOME for each
 * group comes too, once all its workers have shown the version, or it is known that they will not.
 *
 *   out_update  Yours, until waybill_update_destroy(). May be NULL.
 *
 * WAYBILL_INVALID_ARGUMENT     Version 0; an event and no region that is memory of a device; what
 * the driver does not take for an event. WAYBILL_FAILED_PRECONDITION  Not joined, or left; the
 * version is not later than the last one that this trainer published, unless that failed.
 * WAYBILL_DEADLINE_EXCEEDED    The deadline is in the past.
 * In the event:
 * WAYBILL_FAILED_PRECONDITION  Not later than what is committed, or another is on its way.
 * WAYBILL_DEADLINE_EXCEEDED, WAYBILL_UNAVAILABLE, WAYBILL_DATA_LOSS, WAYBILL_CANCELLED
 *                              No group shows the version because of this publish; says why. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_trainer_publish(waybill_trainer_t* trainer, const waybill_publish_options_t* options,
                        uint64_t token, waybill_update_t** out_update, waybill_error_t** error);

WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_trainer_progress(
    const waybill_trainer_t* trainer, waybill_progress_t* out_progress, waybill_error_t** error);
/* What was chosen and why, as JSON: identity, the job's groups, lanes and their paths, counters. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_trainer_describe(
    const waybill_trainer_t* trainer, waybill_blob_t** out_json, waybill_error_t** error);

/* Leaves the job, after the calls before it; one LEFT event follows. The trainer then only can be
 * asked and destroyed. WAYBILL_FAILED_PRECONDITION: it has left. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_trainer_leave(waybill_trainer_t* trainer,
                                                                    uint64_t token,
                                                                    waybill_error_t** error);

/* Leaves at once: calls that are under way end in WAYBILL_CANCELLED, with their events. [waits]
 * until the regions are quiescent, a few seconds at most. */
WAYBILL_API void waybill_trainer_destroy(waybill_trainer_t* trainer);

/* ---- worker ---- */

enum {
  WAYBILL_MODE_SHADOW = 1, /* Two buffers of Waybill's; a commit shows the other one. */
  WAYBILL_MODE_SHADOW_COPY =
      2,                    /* The caller's memory stays where it is; a commit copies into it. */
  WAYBILL_MODE_IN_PLACE = 3 /* Written directly; the engine is paused from before READY. */
};

/* Notices that the update waits with, for waybill_update_accept() or _refuse(); bits. */
enum { WAYBILL_ASK_PREPARE = 1, WAYBILL_ASK_ARRIVED = 2, WAYBILL_ASK_COMMIT = 4 };

typedef struct waybill_worker_options {
  size_t struct_size;
  const waybill_rank_options_t* rank;
  const waybill_manifest_t* manifest;
  waybill_region_t* const* regions; /* One for each region of the manifest, as large; or none. */
  uint32_t region_count;            /* 0: Waybill allocates. */
  uint32_t mode;                    /* WAYBILL_MODE_*; 0: shadow. */
  uint32_t ask;                     /* WAYBILL_ASK_*; all else is accepted at once. */
  uint32_t verify_threads;          /* 0: 1. */
  waybill_queue_t* queue;
} waybill_worker_options_t;
#define WAYBILL_WORKER_OPTIONS_INIT \
  {sizeof(waybill_worker_options_t), NULL, NULL, NULL, 0, 0, 0, 0, NULL}

/* An inference rank. Nothing is opened before waybill_worker_join().
 *
 *   mode         no regions    regions
 *   shadow       two buffers   refused: memory of the caller's cannot be swapped
 *   shadow-copy  refused       one buffer, copied into them
 *   in-place     one buffer    written directly
 *
 * WAYBILL_INVALID_ARGUMENT  The manifest is wrong or has undeclared holes; the regions are not as
 * it says, overlap, or are read-only; names them. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_worker_create(waybill_context_t* context, const waybill_worker_options_t* options,
                      waybill_worker_t** out_worker, waybill_error_t** error);

/* As waybill_trainer_join(). In the event also WAYBILL_RESOURCE_EXHAUSTED: no memory for buffers.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_worker_join(waybill_worker_t* worker,
                                                                  int64_t deadline_ns,
                                                                  uint64_t token,
                                                                  waybill_error_t** error);
/* Comes back after ENDED, with what is shown; settles what was in doubt. One JOINED event follows.
 * WAYBILL_FAILED_PRECONDITION: it never joined, or left; in the event: it has not ENDED. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_worker_rejoin(waybill_worker_t* worker,
                                                                    uint64_t token,
                                                                    waybill_error_t** error);

typedef struct waybill_worker_state {
  size_t struct_size;
  uint64_t shown_version; /* 0: none. */
  uint32_t joined;
  uint32_t dirty;    /* In place: written and not committed; nothing can be read. */
  uint32_t in_doubt; /* Voted and lost the controller: shows the old version until it rejoins. */
  uint32_t reserved;
  uint64_t stragglers; /* Late words of updates that were given up. */
  uint64_t repeats;    /* Immediates that came twice. */
  uint64_t renewals;   /* Buffers that were fenced. */
} waybill_worker_state_t;
#define WAYBILL_WORKER_STATE_INIT {sizeof(waybill_worker_state_t), 0, 0, 0, 0, 0, 0, 0, 0}

WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_worker_state(
    const waybill_worker_t* worker, waybill_worker_state_t* out_state, waybill_error_t** error);
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_worker_progress(
    const waybill_worker_t* worker, waybill_progress_t* out_progress, waybill_error_t** error);
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_worker_describe(
    const waybill_worker_t* worker, waybill_blob_t** out_json, waybill_error_t** error);

/* A hold on the shown version: its bytes do not change until the snapshot is destroyed, and an
 * update that needs the buffer waits. `holder` says who reads, for the error that such an update
 * may end in.
 *
 * WAYBILL_FAILED_PRECONDITION  Nothing is shown yet, or the memory is being written in place. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_worker_snapshot(waybill_worker_t* worker, const char* holder,
                        waybill_snapshot_t** out_snapshot, waybill_error_t** error);

/* As waybill_trainer_leave(). What is shown can still be read. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_worker_leave(waybill_worker_t* worker,
                                                                   uint64_t token,
                                                                   waybill_error_t** error);
/* As waybill_trainer_destroy(). Snapshots that live keep Waybill's buffers, not the caller's
 * regions. */
WAYBILL_API void waybill_worker_destroy(waybill_worker_t* worker);

/* 0 of a handle that is none. */
WAYBILL_API uint64_t waybill_snapshot_version(const waybill_snapshot_t* snapshot);
/* The bytes of a region of the worker's manifest, until the snapshot is destroyed.
 * WAYBILL_OUT_OF_RANGE: there is no such region. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_snapshot_region(const waybill_snapshot_t* snapshot, uint32_t region_index,
                        const void** out_data, uint64_t* out_size_bytes, waybill_error_t** error);
WAYBILL_API void waybill_snapshot_destroy(waybill_snapshot_t* snapshot);

/* ---- update ---- */

/* 0 of a handle that is none. */
WAYBILL_API uint64_t waybill_update_version(const waybill_update_t* update);

/* Answers a worker's PREPARE, ARRIVED or COMMIT, which `event` names. An answer that nobody waits
 * for any more (the update was given up) does nothing, and is WAYBILL_OK.
 *
 * WAYBILL_INVALID_ARGUMENT     Another event, or an update of a trainer's.
 * WAYBILL_FAILED_PRECONDITION  That notice was answered, or did not ask. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_update_accept(waybill_update_t* update,
                                                                    uint32_t event,
                                                                    waybill_error_t** error);
/* The same: PREPARE is refused, ARRIVED vetoed, and nobody of the group shows the version. `reason`
 * reaches every trainer. WAYBILL_INVALID_ARGUMENT also: COMMIT cannot be refused. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_update_refuse(waybill_update_t* update,
                                                                    uint32_t event,
                                                                    const char* reason,
                                                                    waybill_error_t** error);

/* Gives a trainer's update up; its PUBLISHED event says WAYBILL_CANCELLED unless it was SENT
 * before. WAYBILL_INVALID_ARGUMENT: an update of a worker's. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_update_cancel(waybill_update_t* update,
                                                                    waybill_error_t** error);
/* Of a trainer's update its own end does not depend on the handle; a worker's is not answered by
 * it. */
WAYBILL_API void waybill_update_destroy(waybill_update_t* update);

#ifdef __cplusplus
}
#endif

#endif /* WAYBILL_CAPI_WAYBILL_H_ */
