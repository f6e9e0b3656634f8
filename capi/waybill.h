/* SPDX-License-Identifier: Apache-2.0 */

/* Waybill moves updated model weights from trainers to inference workers by one-sided writes.
 *
 * One controller plans for a job and decides commits. A trainer lends Waybill the memory that holds
 * its shards of the tensors, and publishes versions of them. A worker shows each version as a
 * whole, or not at all.
 *
 *   context ─┬─ queue        holds events: poll it, wait for it, or watch its file descriptor
 *            ├─ region       memory that the caller lends to Waybill
 *            ├─ controller   a controller in this process
 *            ├─ trainer ──── update
 *            └─ worker ───┬─ update
 *                         └─ snapshot
 *   layout, manifest, plan   pure: they need no context, no network and no thread
 *
 * HANDLES. A handle is a number in the form of a pointer. Waybill never dereferences it, so a
 * function that gets a handle that was destroyed, or a handle of another kind, returns
 * WAYBILL_INVALID_ARGUMENT. Every destroy function accepts NULL and stale handles. Objects may be
 * destroyed in any order, because an object keeps alive what it needs of its parents. When a
 * destroy function returns, no thread of Waybill, no NIC and no GPU touches the memory that the
 * caller lent to the object.
 *
 * WORDS. A rank is a trainer or a worker. A group is a set of workers that switch versions
 * together; it is whole when all of them are connected. A lane is a connection between two ranks.
 * An epoch numbers one set of ranks and lanes of a group. A box is a range [begin, end) in each
 * dimension of a tensor, and a shard is a box that a rank holds. A trainer sends chunks of at most
 * 1 MiB, and immediates: 32-bit numbers that arrive behind the data. A worker is READY when its
 * buffer may be written, and votes for a version when ARRIVED is accepted.
 *
 * THREADS. Any thread may call any function, at the same time as any other function. Functions
 * marked [waits] block, for at most as long as they say. What reads a checkpoint, builds a plan or
 * opens a GPU takes as long as that work takes. waybill_worker_pause() and waybill_worker_resume()
 * wait for the worker's own thread. No other function waits for another thread or host.
 *
 * STATUS. A function that can fail returns a waybill_status_t. If `error` is not NULL, the function
 * stores an error there if it fails, which the caller destroys with waybill_error_destroy(). It
 * stores NULL if it returns WAYBILL_OK, if its comment says that it makes no error, or if there is
 * no memory for one. A function that fails writes no other output. Beside the statuses that it
 * lists, every function can return:
 *
 * - WAYBILL_INVALID_ARGUMENT: a handle is NULL, stale or of another kind; an output is NULL; or a
 *   struct_size is smaller than the struct was in the first release.
 * - WAYBILL_UNIMPLEMENTED: a newer caller set a field that this library does not know.
 * - WAYBILL_FAILED_PRECONDITION: this process was forked from the process that made the object. In
 *   a forked process every function fails, except the destroy functions, which do nothing.
 * - WAYBILL_RESOURCE_EXHAUSTED: there is not enough memory.
 *
 * STRUCTS that the caller fills, or has Waybill fill, begin with their size. Set it, or use the
 * _INIT macro, which also sets the other fields to zero. Later releases add fields at the end only.
 * Zero in a field selects the documented default.
 *
 * TIMES are in nanoseconds. A deadline is a point in time of waybill_now_ns(), which is
 * CLOCK_MONOTONIC. A deadline of 0 is the documented default, never infinity.
 *
 * TEXT is UTF-8, ends in a zero byte, and is copied during the call. NULL means the same as "".
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

/* These are the numbers of absl::Status and gRPC. They never change. */
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

/* How much an error affects. */
enum {
  WAYBILL_SCOPE_CALL = 1,   /* This call failed. Nothing else is affected. */
  WAYBILL_SCOPE_UPDATE = 2, /* This version will not be shown. The next one may be. */
  WAYBILL_SCOPE_PEER = 3    /* One peer is lost. The next epoch rebuilds its lanes. */
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

/* Returns the version of the loaded library: "MAJOR.MINOR.PATCH". The text is static. */
WAYBILL_API const char* waybill_version(void);
/* Returns WAYBILL_ABI_MAJOR << 16 | WAYBILL_ABI_MINOR of the loaded library. */
WAYBILL_API uint32_t waybill_abi_version(void);
/* Returns the name of a status, such as "INVALID_ARGUMENT", or "UNKNOWN" for an unknown number. The
 * text is static. */
WAYBILL_API const char* waybill_status_name(waybill_status_t status);
/* Returns the time of the monotonic clock that deadlines use, in nanoseconds. */
WAYBILL_API int64_t waybill_now_ns(void);

/* An error never changes. For an invalid handle these functions return WAYBILL_INVALID_ARGUMENT, ""
 * and WAYBILL_SCOPE_CALL. */
WAYBILL_API waybill_status_t waybill_error_code(const waybill_error_t* error);
/* Returns a sentence that names the operation, the object, what was found and what is allowed. The
 * text lives until the error is destroyed. */
WAYBILL_API const char* waybill_error_message(const waybill_error_t* error);
WAYBILL_API uint32_t waybill_error_scope(const waybill_error_t* error);
WAYBILL_API void waybill_error_destroy(waybill_error_t* error);

/* A blob holds bytes that the library made. They never change, and live until the blob is
 * destroyed. A zero byte, which the size does not count, follows them, so that a blob of text is a
 * C string. For an invalid handle these functions return NULL and 0. */
WAYBILL_API const void* waybill_blob_data(const waybill_blob_t* blob);
WAYBILL_API size_t waybill_blob_size(const waybill_blob_t* blob);
WAYBILL_API void waybill_blob_destroy(waybill_blob_t* blob);

/* ---- context ---- */

/* Called with each line of the log: what Waybill chose and why, and what it fell back to. `level`
 * is 1 for information and 2 for a warning. Waybill calls it from any thread, including its own
 * threads, and from several at once. It must not call Waybill or let an exception out. `line` lives
 * during the call only. */
typedef void (*waybill_log_sink_t)(void* user, uint32_t level, const char* line);

typedef struct waybill_context_options {
  size_t struct_size;
  waybill_log_sink_t log_sink; /* NULL: warnings are written to standard error. */
  void* log_user; /* Passed to the sink. Must live until the context's last child is gone. */
} waybill_context_options_t;
#define WAYBILL_CONTEXT_OPTIONS_INIT {sizeof(waybill_context_options_t), NULL, NULL}

/* Creates a context, which holds what the objects of one user share. `options` may be NULL. A
 * process may create any number of contexts. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_context_create(const waybill_context_options_t* options, waybill_context_t** out_context,
                       waybill_error_t** error);

/* Returns, as JSON, the version of the library, and which fabrics and GPUs are usable on this host
 * or why they are not. [waits] for NICs and GPUs to answer, which takes some milliseconds. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_context_describe(
    const waybill_context_t* context, waybill_blob_t** out_json, waybill_error_t** error);

/* Checks what RDMA and large memory need of this host, as `waybill doctor` does. Returns a JSON
 * list of {subject, level ("good", "note" or "bad"), found, remedy}. [waits] for NICs and GPUs to
 * answer, which takes some milliseconds. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_context_examine(
    const waybill_context_t* context, waybill_blob_t** out_json, waybill_error_t** error);

/* Destroys a context. No new object can be made from it; existing objects live on. */
WAYBILL_API void waybill_context_destroy(waybill_context_t* context);

/* ---- queue and events ---- */

enum {
  /* These events end a call. Each accepted call gets exactly one, with the call's token and
   * `status`. */
  WAYBILL_EVENT_JOINED = 1, /* A join has ended. */
  /* A publish has ended: the version is SENT, which means that this trainer's bytes have left; or,
   * with until_committed, every group that it was sent to has decided; or it failed. The memory may
   * change now, unless the version is held: then it may change after RELEASED. */
  WAYBILL_EVENT_PUBLISHED = 2,
  WAYBILL_EVENT_LEFT = 3,     /* A leave has ended. */
  WAYBILL_EVENT_POSTED = 4,   /* waybill_queue_post() was called. */
  WAYBILL_EVENT_RELEASED = 5, /* A release has ended: nothing reads the trainer's memory. */
  WAYBILL_EVENT_FETCHED = 6,  /* A fetch has ended: `version` is shown. */

  /* These events are notices. Their token is 0. A worker gets PREPARE, ARRIVED and COMMIT of an
   * update in this order; ABORT may come instead of ARRIVED or COMMIT. */

  /* An update is about to begin. Pause what must be paused, then accept or refuse it. */
  WAYBILL_EVENT_PREPARE = 16,
  /* All bytes of the update have arrived and are verified. Accept or refuse it. For a trainer that
   * has published with hold_commit: every worker of each group that has not given the version up
   * has accepted it. */
  WAYBILL_EVENT_ARRIVED = 17,
  /* The version is shown. Run what follows loading, then accept; or refuse, if that failed. */
  WAYBILL_EVENT_COMMIT = 18,
  /* The version will not be shown; `status` says why. In place, the engine stays paused if
   * waybill_worker_state() says `dirty`; otherwise nothing was written, and it may resume. */
  WAYBILL_EVENT_ABORT = 19,
  /* A trainer learns how a version ended in `group`. WAYBILL_OK: all its workers show the version.
   * WAYBILL_UNKNOWN: no record tells any more. Any other status: the group does not show it; or, as
   * the error then says, it is committed, but not all workers have shown it. */
  WAYBILL_EVENT_OUTCOME = 20,
  /* The controller has dismissed this rank for good; `status` says why. */
  WAYBILL_EVENT_ENDED = 21,
  /* The connection to the controller is lost; `status` says why. The rank reconnects by itself, and
   * what it shows stays shown. */
  WAYBILL_EVENT_DISCONNECTED = 22,
  /* The rank is connected again, and takes part in updates of at least one group. */
  WAYBILL_EVENT_RECONNECTED = 23,
  /* For a trainer, after PUBLISHED with WAYBILL_OK: every group that the version was sent to has
   * decided, and each has had its OUTCOME. `status` is the first error. A publish with
   * until_committed has no DECIDED: its PUBLISHED says the same. */
  WAYBILL_EVENT_DECIDED = 24,
  /* For a trainer: from now on, versions go to `group`. After JOINED and after RECONNECTED, each
   * group that is here is told. */
  WAYBILL_EVENT_GROUP_JOINED = 25,
  /* For a trainer: the last worker of `group` has left or died. */
  WAYBILL_EVENT_GROUP_LEFT = 26,
  /* For a worker, after COMMIT: the version was not published now. This group had missed it, and
   * another group has lent it, or the trainers held it. */
  WAYBILL_EVENT_CAUGHT_UP = 27,
  /* For a trainer: a worker of `group`, others of which are here, has left or died; `status` says
   * which. Versions go to the group again when all its workers are here. */
  WAYBILL_EVENT_WORKER_LOST = 28,
  /* For a trainer that has published with hold_commit, before ARRIVED: every group has all of the
   * version, verified, or has given it up. Workers that ask ARRIVED have still to answer. */
  WAYBILL_EVENT_RECEIVED = 29
};

/* The kind of object that an event belongs to. */
enum { WAYBILL_SOURCE_TRAINER = 1, WAYBILL_SOURCE_WORKER = 2, WAYBILL_SOURCE_QUEUE = 3 };

typedef struct waybill_event {
  size_t struct_size;
  uint32_t kind;            /* WAYBILL_EVENT_*. */
  uint32_t source;          /* WAYBILL_SOURCE_*. */
  uint64_t token;           /* The call's token, or 0. */
  uint64_t user;            /* `user` of the rank options. */
  uint64_t version;         /* The version of the update. */
  waybill_status_t status;  /* How a call ended, or the reason for a notice. */
  uint32_t answer_wanted;   /* 1: the update waits for waybill_update_accept() or _refuse(). */
  uint64_t pause_ns;        /* COMMIT: how long copying took (shadow-copy). */
  waybill_update_t* update; /* Yours. Set for PREPARE to ABORT, else NULL. */
  waybill_error_t* error;   /* Yours. NULL if status is WAYBILL_OK. */
  waybill_blob_t* group; /* Yours. OUTCOME, GROUP_JOINED, GROUP_LEFT, WORKER_LOST: the group's name;
                            else NULL. */
  /* 1: for COMMIT, the version has the bytes that the worker showed before; for OUTCOME, every
   * worker of the group did. 0: its bytes differ; or they were not compared, because digests are
   * off, the plan has changed or a lane has died. */
  uint32_t unchanged;
  /* OUTCOME: 1 if the group has committed the version, also where `status` says that not all of its
   * workers show it. */
  uint32_t committed;
} waybill_event_t;
#define WAYBILL_EVENT_INIT {sizeof(waybill_event_t), 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, 0, 0}

/* Creates a queue. Trainers and workers put their events into the queue named in their options. One
 * queue may serve many of them. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_queue_create(waybill_context_t* context,
                                                                   waybill_queue_t** out_queue,
                                                                   waybill_error_t** error);

/* Takes the oldest event.
 *
 * - WAYBILL_NOT_FOUND: the queue is empty. No error object is made.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_queue_poll(waybill_queue_t* queue,
                                                                 waybill_event_t* out_event,
                                                                 waybill_error_t** error);

/* Takes the oldest event, and waits for one if the queue is empty. [waits] until `deadline_ns`; 0
 * means 60 s from now. With a deadline in the past it only looks.
 *
 * - WAYBILL_DEADLINE_EXCEEDED: no event came. No error object is made.
 * - WAYBILL_CANCELLED: the queue was destroyed meanwhile. No error object is made.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_queue_wait(waybill_queue_t* queue,
                                                                 int64_t deadline_ns,
                                                                 waybill_event_t* out_event,
                                                                 waybill_error_t** error);

/* Returns a file descriptor that is readable while the queue holds events, for poll(2) and the
 * like. It belongs to the queue: do not read or close it. Returns -1 for an invalid handle. */
WAYBILL_API int waybill_queue_fd(const waybill_queue_t* queue);

/* Puts a POSTED event with `token` into the queue, to wake a thread that waits there. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_queue_post(waybill_queue_t* queue,
                                                                 uint64_t token,
                                                                 waybill_error_t** error);

/* Destroys the objects that belong to the event, and sets all fields but struct_size to zero.
 * Accepts NULL. */
WAYBILL_API void waybill_event_release(waybill_event_t* event);

/* Destroys a queue and the events in it. Later events of the objects that use it are dropped. */
WAYBILL_API void waybill_queue_destroy(waybill_queue_t* queue);

/* ---- memory ---- */

enum { WAYBILL_MEMORY_HOST = 1, WAYBILL_MEMORY_DEVICE = 2 };

typedef struct waybill_region_options {
  size_t struct_size;
  void* data; /* Lent until waybill_region_destroy() has returned. */
  uint64_t size_bytes;
  uint32_t kind;      /* WAYBILL_MEMORY_*. 0: host. */
  uint32_t read_only; /* 1: workers must not use it. */
  const char* name;   /* Appears in errors. */
} waybill_region_options_t;
#define WAYBILL_REGION_OPTIONS_INIT {sizeof(waybill_region_options_t), NULL, 0, 0, 0, NULL}

/* Lends memory of the caller to Waybill. Trainers read it, and workers write to it.
 *
 * DEVICE is memory of a GPU. All regions of a rank that are GPU memory must be of the same GPU. A
 * trainer's regions are read by kernels of that GPU, on streams of Waybill's own, and by NICs;
 * Waybill never waits for the GPU as a whole. Waybill copies to a worker's regions after ARRIVED
 * (WAYBILL_MODE_SHADOW_COPY), or writes to them after PREPARE (WAYBILL_MODE_IN_PLACE). Finish the
 * caller's own work on these regions before that event is accepted.
 *
 * - WAYBILL_INVALID_ARGUMENT: `data` is NULL and size_bytes is not 0; the range overflows; or
 *   `kind` is DEVICE and the memory is not a GPU's.
 * - WAYBILL_UNAVAILABLE: `kind` is DEVICE and there is no driver. The error says what was looked
 *   for.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_region_create(waybill_context_t* context, const waybill_region_options_t* options,
                      waybill_region_t** out_region, waybill_error_t** error);

/* Ends the loan: when it returns, the memory is the caller's again. Ranks that use the region leave
 * first, without a LEFT event, and their calls under way end with WAYBILL_CANCELLED. Their handles
 * remain to be destroyed. [waits] for each rank as its destroy function does. */
WAYBILL_API void waybill_region_destroy(waybill_region_t* region);

/* ---- manifests: what one rank holds ---- */

/* Element types. The numbers never change. */
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
/* Returns the bytes of one element, or 0 for an unknown number. */
WAYBILL_API uint32_t waybill_dtype_size(uint32_t dtype);
/* Returns the name that safetensors uses, such as "BF16", or "" for an unknown number. The text is
 * static. */
WAYBILL_API const char* waybill_dtype_name(uint32_t dtype);

#define WAYBILL_MAX_DIMENSIONS 8

/* Which part of a tensor a shard holds. */
enum {
  WAYBILL_CONTENT_PLAIN = 0,     /* The tensor's elements. */
  WAYBILL_CONTENT_QUANTISED = 1, /* The tensor's elements, quantised. */
  /* The scales of its quantised elements. The shard's box counts scales. */
  WAYBILL_CONTENT_SCALES = 2
};

/* How the elements of a matrix are stored in few bits, with one scale for each block. The matrix is
 * a tensor's last two dimensions. With all fields but struct_size zero it is the format of
 * DeepSeek-V3's checkpoints. In the formulas, x is an element, `magnitude` is the largest magnitude
 * of its block (at least epsilon), `largest` is the largest number of `dtype`, and s is magnitude /
 * largest, rounded as `rounding` says. */
typedef struct waybill_quantisation {
  size_t struct_size;
  uint32_t dtype;       /* The stored type. 0: F8_E4M3. */
  uint32_t from_dtype;  /* Elements are first rounded to this type. 0: BF16. */
  uint32_t scale_dtype; /* 0: F32. */
  uint32_t rounding; /* How scales are rounded. 0 or 1: not; 2: up to a power of two; 3: as OCP MX
                        does. */
  uint32_t division; /* 0 or 1: x * (1 / s); 2: x * (largest / magnitude); 3: x / s. */
  uint32_t stores_reciprocal; /* 1: 1 / s is stored instead of s. */
  float epsilon;              /* Lower bound of the largest magnitude. 0: 1e-4; negative: none. */
  uint32_t block_rows;        /* Rows of a block. 0: 128; UINT32_MAX: the whole matrix. */
  uint32_t block_columns;     /* Likewise. */
  uint32_t scale_rows;        /* How many rows share a stored scale. 0: block_rows. */
  uint32_t scale_columns;
} waybill_quantisation_t;
#define WAYBILL_QUANTISATION_INIT \
  {sizeof(waybill_quantisation_t), 0, 0, 0, 0, 0, 0, 0.0f, 0, 0, 0, 0}

/* Returns a format by its name: "fp8-block", "fp8-row", "fp8-tensor" or "mxfp8". The error for an
 * unknown name lists all names. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_quantisation_named(
    const char* name, waybill_quantisation_t* out_quantisation, waybill_error_t** error);

/* A shard: one box of a tensor, and where this rank holds it. Arrays have `dimensions` entries,
 * slowest dimension first, and are read during the call only. */
typedef struct waybill_shard {
  size_t struct_size;
  uint32_t tensor_index;
  uint32_t region_index;
  uint64_t offset_bytes; /* Where the box's first element lies in the region. */
  uint32_t dtype;        /* 0: the tensor's type, or the quantisation's. */
  uint32_t content;      /* WAYBILL_CONTENT_*. */
  const waybill_quantisation_t* quantisation; /* NULL for plain content. */
  uint32_t dimensions;                        /* 0 with a NULL box: the whole tensor. */
  uint32_t reserved;
  const int64_t* begin; /* The box is half-open. NULL: the whole tensor. */
  const int64_t* end;
  const int64_t* strides; /* In elements. NULL: dense, last dimension fastest. */
  /* NULL: the elements lie as the strides say. Otherwise the name of the order (such as "marlin")
   * into which the engine has repacked the elements. Joining and planning then fail; the error
   * names this order and says what to receive instead. */
  const char* engine_order;
} waybill_shard_t;
#define WAYBILL_SHARD_INIT \
  {sizeof(waybill_shard_t), 0, 0, 0, 0, 0, NULL, 0, 0, NULL, NULL, NULL, NULL}

/* Elements of a region that belong to no tensor. They are zeros, and no plan writes them. */
typedef struct waybill_padding {
  size_t struct_size;
  uint32_t region_index;
  uint32_t element_bytes; /* 0: 1. */
  uint64_t offset_bytes;
  uint32_t dimensions;
  uint32_t reserved;
  const int64_t* extents;
  const int64_t* strides; /* In elements. NULL: dense. */
} waybill_padding_t;
#define WAYBILL_PADDING_INIT {sizeof(waybill_padding_t), 0, 0, 0, 0, 0, NULL, NULL}

/* Creates an empty manifest. A function that takes a manifest copies it, so the caller may change
 * the manifest and use it again. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_manifest_create(waybill_manifest_t** out_manifest, waybill_error_t** error);

/* Add a region, a tensor, a shard or padding to the manifest. Each function writes the index of
 * what it added, counted from 0, unless out_index is NULL. What needs the whole manifest (duplicate
 * names, places outside their region, sizes that overflow) is checked by the functions that use the
 * manifest.
 *
 * - WAYBILL_INVALID_ARGUMENT: a name is empty; an index does not exist; an extent is negative;
 *   there are more than WAYBILL_MAX_DIMENSIONS dimensions; or a box is not a range.
 */
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
/* Adds another name of a tensor, such as a tied output head. Nothing is transferred for it. Of the
 * names that a worker has for a tensor, the trainers have to know one; what they know by several of
 * them has to be one tensor. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_manifest_add_alias(waybill_manifest_t* manifest, const char* name, uint32_t tensor_index,
                           uint32_t* out_index, waybill_error_t** error);

/* Return 0 for an invalid handle or an index that does not exist. */
WAYBILL_API uint32_t waybill_manifest_region_count(const waybill_manifest_t* manifest);
WAYBILL_API uint64_t waybill_manifest_region_size(const waybill_manifest_t* manifest,
                                                  uint32_t region_index);

/* Returns the encoding that travels to the controller. Equal manifests have equal encodings on
 * every host. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_manifest_encode(
    const waybill_manifest_t* manifest, waybill_blob_t** out_bytes, waybill_error_t** error);
/* Decodes what waybill_manifest_encode() returned.
 *
 * - WAYBILL_DATA_LOSS, WAYBILL_INVALID_ARGUMENT: the bytes are not a manifest.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_manifest_decode(const void* data, size_t size_bytes, waybill_manifest_t** out_manifest,
                        waybill_error_t** error);
/* Returns the manifest as JSON: regions, tensors, shards with format, box and place, padding, and
 * aliases. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_manifest_describe(
    const waybill_manifest_t* manifest, waybill_blob_t** out_json, waybill_error_t** error);
WAYBILL_API void waybill_manifest_destroy(waybill_manifest_t* manifest);

/* ---- layouts: manifests made from a model ---- */

typedef struct waybill_layout_options {
  size_t struct_size;
  /* A directory as Hugging Face has them, with config.json and safetensors files. Set either this
   * or `model`. */
  const char* checkpoint;
  const char* model; /* A synthetic model without data: "qwen3-0.6b", "gpt2", ... */
  uint32_t layers;   /* How many layers a synthetic model has. 0: all. */
  uint32_t reserved;
} waybill_layout_options_t;
#define WAYBILL_LAYOUT_OPTIONS_INIT {sizeof(waybill_layout_options_t), NULL, NULL, 0, 0}

/* Opens a layout: a model's tensors, and how frameworks name, fuse and shard them. It never
 * changes.
 *
 * - WAYBILL_NOT_FOUND, WAYBILL_INVALID_ARGUMENT: the error names the file and the tensor.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_layout_open(const waybill_layout_options_t* options, waybill_layout_t** out_layout,
                    waybill_error_t** error);
/* Returns the manifest of trainer `rank`, which has one region, "weights". `sharding` is a list
 * such as "fsdp=2,replicas=4" or "megatron,tp=4,pp=2,ep=8"; what it does not name is 1.
 * core/layout/README.md lists the words. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_layout_trainer_manifest(const waybill_layout_t* layout, const char* sharding, uint32_t rank,
                                waybill_manifest_t** out_manifest, waybill_error_t** error);
/* Returns the manifest of worker `rank` as vLLM or SGLang loads the model, with one region,
 * "weights". `sharding` is a list such as "tp=2,dp=4,ep=8,engine=sglang". `format` is "bf16", a
 * name of waybill_quantisation_named(), or "" for what config.json says. `dtype` is the type of
 * what is not quantised, such as "BF16", or "" for the type in the checkpoint. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_layout_worker_manifest(
    const waybill_layout_t* layout, const char* sharding, uint32_t rank, const char* format,
    const char* dtype, waybill_manifest_t** out_manifest, waybill_error_t** error);
/* Returns that worker's parameters as JSON, in the engine's order: name, dtype, shape, region and
 * offset. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_layout_worker_parameters(
    const waybill_layout_t* layout, const char* sharding, uint32_t rank, const char* format,
    const char* dtype, waybill_blob_t** out_json, waybill_error_t** error);
/* Reads the elements of region 0 of the manifest from the checkpoint into `data`.
 *
 * - WAYBILL_FAILED_PRECONDITION: a synthetic model has no data.
 */
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
  /* Bytes that several trainers hold are divided among them in pieces no smaller than this. 0 means
   * 64 KiB. */
  uint64_t smallest_piece_bytes;
} waybill_plan_options_t;
#define WAYBILL_PLAN_OPTIONS_INIT {sizeof(waybill_plan_options_t), NULL, NULL, 0, 0, 0}

typedef struct waybill_plan_summary {
  size_t struct_size;
  uint64_t hash;  /* Equal plans have equal hashes, on every host. */
  uint64_t bytes; /* Received by all workers in each update. */
  uint64_t routes;
  uint64_t writes; /* Writes of an update if no memory can be mapped. */
  /* Largest magnitudes of split quantisation blocks that trainers trade in each update. */
  uint64_t maxima;
  uint64_t maxima_messages;
  /* The load of the busiest rank over the lower bound of any assignment. 1 is perfect. */
  double busiest_to_bound;
  double busiest_to_mean; /* The load of the busiest trainer over the mean. */
} waybill_plan_summary_t;
#define WAYBILL_PLAN_SUMMARY_INIT {sizeof(waybill_plan_summary_t), 0, 0, 0, 0, 0, 0, 0.0, 0.0}

/* Builds the routing tables. Pure: it reads only its arguments and opens nothing.
 *
 * The same manifests in the same order give the same plan, byte for byte, on every host.
 *
 *   options   Read during the call only.
 *   out_plan  Yours, until waybill_plan_destroy(). Immutable.
 *
 * - WAYBILL_INVALID_ARGUMENT: no trainer can fill some byte of a worker, or the manifests do not
 *   fit together. The error names the tensor, the worker and both ranges.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_plan_build(
    const waybill_plan_options_t* options, waybill_plan_t** out_plan, waybill_error_t** error);
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_plan_summarise(
    const waybill_plan_t* plan, waybill_plan_summary_t* out_summary, waybill_error_t** error);
/* Returns the plan as text. `format` is "text" for a table that people read, "json", or "routes"
 * for JSON with every route. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_plan_explain(const waybill_plan_t* plan,
                                                                   const char* format,
                                                                   waybill_blob_t** out_text,
                                                                   waybill_error_t** error);
WAYBILL_API void waybill_plan_destroy(waybill_plan_t* plan);

/* ---- controller ---- */

typedef struct waybill_controller_options { /* From capi/options.toml. */
  size_t struct_size;
  /* The address and port to listen on; port 0 takes a free port. Default: "127.0.0.1:7070". */
  const char* listen;
  /* The name of the job, which all its ranks give. Default: "waybill". */
  const char* job;
  /* The job's secret, of 16 bytes at least, or the key of a controller, or the file of either as
   * @FILE. It is never sent. Required beyond loopback. Default: a secret that the processes of this
   * user share on this host. */
  const char* token;
  /* The file that keeps decisions. Default: none; they are lost with this process. */
  const char* state;
  /* The groups that must be whole before a version is published, separated by commas. A group is
   * whole when every worker has joined and every lane works. A publish skips any other group that
   * is not whole; that group's outcome is WAYBILL_UNAVAILABLE. */
  const char* required_groups;
  /* How long a rank that joins may wait for the others of its group. Default: 120 s. */
  int64_t join_timeout_ns;
} waybill_controller_options_t;
#define WAYBILL_CONTROLLER_OPTIONS_INIT \
  {sizeof(waybill_controller_options_t), NULL, NULL, NULL, NULL, NULL, 0}

/* Starts a controller in this process. It serves until it is destroyed.
 *
 * - WAYBILL_UNAVAILABLE: the controller cannot listen on the address or open the file of decisions,
 * or another controller has the file open.
 * - WAYBILL_DATA_LOSS: the file of decisions is damaged, or is another kind of file.
 * - WAYBILL_INVALID_ARGUMENT: the address is beyond loopback and there is no token; the state is
 *   etcd://..., which only the program `waybill controller` takes; or join_timeout_ns is negative.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_controller_start(waybill_context_t* context, const waybill_controller_options_t* options,
                         waybill_controller_t** out_controller, waybill_error_t** error);
/* Returns the address that ranks connect to, such as "127.0.0.1:40123". */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_controller_address(
    const waybill_controller_t* controller, waybill_blob_t** out_address, waybill_error_t** error);
/* Returns the state of the job as JSON: phase, versions, groups, ranks, lanes and NICs. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_controller_status(
    const waybill_controller_t* controller, waybill_blob_t** out_json, waybill_error_t** error);
/* Returns the state of the job from the controller at `address`, which is as that of a rank.
 * [waits] until deadline_ns; 0 means 5 s from now.
 *
 * - WAYBILL_DEADLINE_EXCEEDED: the deadline is in the past.
 * - WAYBILL_UNAVAILABLE: no controller answers there by the deadline.
 * - WAYBILL_UNAUTHENTICATED: the controller has another token.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_controller_query(waybill_context_t* context, const char* address, const char* token,
                         int64_t deadline_ns, waybill_blob_t** out_json, waybill_error_t** error);
/* Returns the tensors that the job's trainers declare, each once, as JSON:
 * {"tensors": [{"name": "model.norm.weight", "dtype": "BF16", "shape": [4096]}, ...]}. A worker
 * declares what it holds of these. `address` is as that of a rank. [waits] until all trainers have
 * said what they hold, and until deadline_ns; 0 means 5 s from now.
 *
 * - WAYBILL_DEADLINE_EXCEEDED: the deadline is in the past, or trainers are missing until then; the
 *   error names them.
 * - WAYBILL_UNAVAILABLE: no controller answers there by the deadline.
 * - WAYBILL_UNAUTHENTICATED: the controller has another token.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_job_tensors(waybill_context_t* context, const char* address, const char* token,
                    int64_t deadline_ns, waybill_blob_t** out_json, waybill_error_t** error);
/* Stops the controller. [waits] until its ranks have been told, a second at most. */
WAYBILL_API void waybill_controller_destroy(waybill_controller_t* controller);

/* ---- ranks ---- */

/* The controller chooses a rank that nobody has when the process joins, which keeps it until it
 * leaves; waybill_trainer_describe() and waybill_worker_describe() say which. For ranks whose
 * manifest does not depend on their number. */
#define WAYBILL_ANY_RANK 0xFFFFFFFFu

/* Who a rank is, and how it reaches other ranks. The caller declares it; Waybill does not guess. */
typedef struct waybill_rank_options { /* From capi/options.toml. */
  size_t struct_size;
  /* The address and port of the controller; of several controllers, all addresses, separated by
   * commas. The rank finds the one that leads. Default: "127.0.0.1:7070". */
  const char* controller;
  /* The name of the job. Default: "waybill". */
  const char* job;
  /* The job's secret, or a key that it has issued, or the file of either as @FILE, which is read at
   * each connection. It is never sent. Default: the one that the processes of this user share on
   * this host. */
  const char* token;
  /* The name of a worker's group, whose workers switch versions together. Trainers have none.
   * Default: "all". */
  const char* group;
  /* The index of this rank, from 0 to world - 1; workers count within their group. With
   * WAYBILL_ANY_RANK, the controller chooses one that nobody has. */
  uint32_t rank;
  /* How many trainers, or how many workers of the group, there are. Default: 1. */
  uint32_t world;
  /* How the rank reaches its peers: "local", "verbs" or "tcp"; or "auto", which takes for each peer
   * the best one that has carried an empty write. Default: "auto". */
  const char* fabric;
  /* This host's numeric address. Default: the one from which it reaches the controller. */
  const char* host;
  /* The RDMA NICs to use, in the order of their rails, separated by commas: "mlx5_0", or "mlx5_0:2"
   * for its second port, or "mlx5_0=3" with its GID index 3. Default: every active port; of a rank
   * with tensors on a GPU, those that are nearest to it by PCIe, and every one where the kernel
   * does not tell where they are. */
  const char* nics;
  /* The GID index of every port, plus 1. Default: chosen by the rule that `waybill doctor`
   * explains. */
  uint32_t gid_index;
  /* The timeout N of queue pairs, 1 to 31: a lost packet is sent again after 4.096 us times 2^N.
   * Default: 14, or 18 on SoftRoCE. */
  uint32_t ack_timeout;
  /* The traffic class of RoCE packets: DSCP times 4, plus ECN. */
  uint32_t traffic_class;
  uint32_t reserved;
  /* Returned in every event of the rank. */
  uint64_t user;
  /* The name of this host's rack or leaf switch. Links between racks are often oversubscribed, so a
   * worker gets data that several trainers hold from those in its own rack, as far as the balance
   * of their loads allows. Default: unknown; the rank is then in no rack with any other. */
  const char* rack;
  /* The most bytes a second that the rank sends over NICs, to leave room for other traffic. What
   * its own host's ranks get through shared memory does not count. Default: no limit. */
  uint64_t rate_limit;
} waybill_rank_options_t;
#define WAYBILL_RANK_OPTIONS_INIT  \
  {sizeof(waybill_rank_options_t), \
   NULL,                           \
   NULL,                           \
   NULL,                           \
   NULL,                           \
   0,                              \
   0,                              \
   NULL,                           \
   NULL,                           \
   NULL,                           \
   0,                              \
   0,                              \
   0,                              \
   0,                              \
   0,                              \
   NULL,                           \
   0}

/* Stages of an update on a rank: the indices of begin_ns and end_ns in waybill_progress_t. */
enum {
  WAYBILL_STAGE_EXCHANGE = 0, /* Trainer: works out and trades maxima of split blocks. */
  WAYBILL_STAGE_STAGE = 1,    /* Trainer: copies, casts, quantises. */
  WAYBILL_STAGE_POST = 2,     /* Trainer: hands chunks to the network. */
  WAYBILL_STAGE_WAIT = 3,     /* Trainer: waits until all chunks are complete. */
  WAYBILL_STAGE_RECEIVE = 4,  /* Worker: from READY until everything has arrived. */
  WAYBILL_STAGE_VERIFY = 5,   /* Worker: digests what has arrived. */
  WAYBILL_STAGE_COMMIT = 6    /* Worker: from the decision until the version is shown. */
};
#define WAYBILL_STAGE_COUNT 7

/* How far a rank's latest update has come. The counts of an update depend only on its plan. */
typedef struct waybill_progress {
  size_t struct_size;
  uint64_t version;
  uint64_t planned_bytes; /* What this rank sends or receives in every update. */
  uint64_t bytes;         /* Trainer: handed to the network or stored. Worker: arrived. */
  uint64_t writes;        /* Trainers only, as are the next five: writes posted. */
  uint64_t stores;        /* Chunks stored at their final address through a mapping. */
  uint64_t immediates;
  uint64_t maxima_messages; /* To other trainers. */
  uint64_t maxima_bytes;
  uint64_t nonfinite;                    /* NaNs and infinities among the quantised elements. */
  int64_t begin_ns[WAYBILL_STAGE_COUNT]; /* Times of waybill_now_ns(). 0: not yet, or never. */
  int64_t end_ns[WAYBILL_STAGE_COUNT];
} waybill_progress_t;
#define WAYBILL_PROGRESS_INIT {sizeof(waybill_progress_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}}

/* ---- trainer ---- */

/* A trainer sends everything, or only the changes since the version before. */
enum {
  WAYBILL_CHANGES_NEVER = 0,
  /* Sends changes to the groups that they reach sooner than everything does. */
  WAYBILL_CHANGES_AUTO = 1,
  WAYBILL_CHANGES_ALWAYS = 2
};

typedef struct waybill_trainer_options { /* From capi/options.toml. */
  size_t struct_size;
  /* The trainer's identity, and how it reaches its peers. */
  const waybill_rank_options_t* rank;
  /* The tensors and shards that the trainer holds. */
  const waybill_manifest_t* manifest;
  /* One for each region of the manifest, of the same size. */
  waybill_region_t* const* regions;
  uint32_t region_count;
  /* How many threads cast and quantise. Default: 1, or 4 if the regions are GPU memory. */
  uint32_t stage_threads;
  /* The largest size of the staging ring. Default: 32 MiB, or 128 MiB if the regions are GPU
   * memory. */
  uint64_t ring_bytes;
  /* 1: a publish copies the tensors first, to memory that joining reserves where they lie (in the
   * host's memory or on their GPU, as large as they are), and the version is sent from the copy.
   * The tensors may change once they are copied, which ends the publish, and the copy serves groups
   * that have missed the version until the next one is published. The next publish waits until the
   * version has been sent. What fails after the publish has ended is told with the outcome. What
   * several workers want alike and cannot be sent from the copy itself is cast, quantised or packed
   * once for all of them, in memory that the host reserves for it when the second of them joins. */
  uint32_t images;
  /* Whether only what changed since the version before travels: WAYBILL_CHANGES_*. With auto and
   * always, joining reserves as much again for that version, beside what `images` reserves, which
   * it implies. Workers that show that version, in shadow or shadow-copy mode and in host memory,
   * get what changed since, tensor by tensor in pieces of 1 MiB, where that is shorter, and
   * complete the rest themselves; the digests of all bytes are compared as ever. Other workers, and
   * tensors that are quantised on the way, get everything. It costs processor time on both sides:
   * with auto, each group gets what reached it sooner lately, and the slower way is tried again now
   * and then. Not for tensors in GPU memory. Default: never. */
  uint32_t changes;
  waybill_queue_t* queue;
} waybill_trainer_options_t;
#define WAYBILL_TRAINER_OPTIONS_INIT \
  {sizeof(waybill_trainer_options_t), NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL}

/* Creates a trainer: a rank that holds new weights. It opens the GPU of its regions, if there is
 * one, and no connection before waybill_trainer_join(). Versions are sent in the order of the
 * publishes.
 *
 * - WAYBILL_INVALID_ARGUMENT: the manifest is wrong; the regions do not match it, or are memory of
 *   several GPUs; or a field of the rank options is out of range. The error names it.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_trainer_create(waybill_context_t* context, const waybill_trainer_options_t* options,
                       waybill_trainer_t** out_trainer, waybill_error_t** error);
/* Joins the job as waybill_trainer_join() does, and returns how that ended, with the statuses of
 * the call and of its event. No JOINED event follows. [waits] until shortly after `deadline_ns` at
 * the latest (0 means 120 s from now), or until another thread destroys the trainer. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_trainer_join_and_wait(
    waybill_trainer_t* trainer, int64_t deadline_ns, waybill_error_t** error);

/* Joins the job. One JOINED event with `token` follows, when all trainers and all workers of a
 * group have joined and every lane between them works: for a worker its own group, for a trainer
 * the first group that is ready. It comes at the latest shortly after `deadline_ns` (0 means 120 s
 * from now).
 *
 * - WAYBILL_FAILED_PRECONDITION: the trainer has joined or is joining; or it has left, and cannot
 *   join again: create another one.
 * - WAYBILL_DEADLINE_EXCEEDED: the deadline is in the past.
 *
 * Status of the event:
 * - WAYBILL_UNAVAILABLE: no controller answers.
 * - WAYBILL_UNAUTHENTICATED: the controller has another token.
 * - WAYBILL_ALREADY_EXISTS: another process has this rank, and it still answers.
 * - WAYBILL_DEADLINE_EXCEEDED: ranks are missing, or lanes do not connect. The error names them.
 * - WAYBILL_INVALID_ARGUMENT: the manifests of the ranks do not fit together, or the controller
 *   serves another job.
 * - WAYBILL_FAILED_PRECONDITION: another rank has declared another `world`.
 * - WAYBILL_RESOURCE_EXHAUSTED: there is not enough memory for the staging ring; or any rank is
 *   asked for, and all are taken.
 * - WAYBILL_CANCELLED: the trainer left before it had joined.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_trainer_join(waybill_trainer_t* trainer,
                                                                   int64_t deadline_ns,
                                                                   uint64_t token,
                                                                   waybill_error_t** error);

typedef struct waybill_publish_options { /* From capi/options.toml. */
  size_t struct_size;
  /* The version, which must be greater than the committed one. */
  uint64_t version;
  /* The time at which the publish ends at the latest. Default: 60 s from now. */
  int64_t deadline_ns;
  /* 1: the publish goes on, and the memory is lent, until every group has decided. An error is the
   * first one of a group, and the OUTCOME events say which groups show the version all the same.
   * Otherwise the publish ends when the version is SENT. */
  uint32_t until_committed;
  /* 1: workers do not verify what arrives, and replicas are not compared. */
  uint32_t no_digests;
  /* 1: a group does not show the version if NaNs or infinities are among the elements that this
   * trainer quantises for it. Other groups may show it. With images, those of a tensor count for
   * all groups for which parts of the tensor are quantised together. */
  uint32_t fail_on_nonfinite;
  /* 1: the memory stays as it is after the publish, until waybill_trainer_release(). A group that
   * has missed the version, and to which no other group can lend it, gets it from the trainers, if
   * all of them hold it. Versions whose other trainers die after this one has sent its part are
   * completed, too. */
  uint32_t hold;
  /* A CUevent (a cudaEvent_t is one). The regions are not read before the work that the event last
   * recorded is done. When the call has returned, the event may be recorded again or destroyed.
   * Default: none. */
  void* after_event;
  /* 1: a group that has all of the version, verified, waits undecided, at most until the deadline.
   * Once every group waits or has given the version up, each trainer gets ARRIVED:
   * waybill_update_accept() makes the groups show it, waybill_update_refuse() makes them keep what
   * they show. The first answer of any trainer counts. A trainer that loses the controller in the
   * meantime cannot answer any more. All trainers set it alike. */
  uint32_t hold_commit;
  uint32_t reserved;
  /* The span of which the update is a part, as the value of a W3C traceparent header. The
   * controller's traces of the version (`waybill controller --traces`) then belong to that span's
   * trace, and are sent if it is sampled. Of several trainers' spans the one counts that the
   * controller hears of first. Default: a trace of its own. */
  const char* traceparent;
  /* If not 0, the publish goes on, at most until the deadline, while a required group that fetches
   * versions (`waybill controller --require`) shows one that is older by more than this number, so
   * that no rollout generates with weights that are too old while the trainer trains on. The group
   * can fetch this version meanwhile, if it can be had then: with `images`, or if it is held. Other
   * groups are not waited for. Default: 0, no bound. */
  uint64_t max_behind;
  /* The names of the tensors that are taken over into this version, separated by commas; * stands
   * for any text. The others stay as they are in the version before. Needs the option `changes` of
   * the trainer. Unless all are taken over, workers and `waybill status` call the version
   * approximate. All trainers publish a version with the same names, and each name is known to one
   * of them at least; the first version of a trainer that has come back has to be a whole one, on
   * all of them. Default: all. */
  const char* tensors;
  /* Of each tensor, at most this many of a million elements are taken over into this version: of
   * each 65,536 elements those that have changed most, relative to the element. The others stay as
   * they are in the version before, and what was left is a change again at the next version.
   * Elements of other types than F32, F16 and BF16 are all taken over. The rules are those of
   * `tensors`. Default: 0, all. */
  uint32_t at_most_ppm;
} waybill_publish_options_t;
#define WAYBILL_PUBLISH_OPTIONS_INIT \
  {sizeof(waybill_publish_options_t), 0, 0, 0, 0, 0, 0, NULL, 0, 0, NULL, 0, NULL, 0}

/* Publishes a version. Every trainer of the job must publish the same versions. The regions must
 * not change until the PUBLISHED event with `token`, and may change after it, however the publish
 * ended, unless the version is held. One OUTCOME event comes for each group that the version goes
 * to or that is skipped, once all workers of the group show the version, or once it is known that
 * they will not. It may come before PUBLISHED or after it.
 *
 *   out_update  Yours, until waybill_update_destroy(). May be NULL.
 *
 * A publish begins when the version before it is sent, and begins in a group when that group has
 * decided the version before. It goes to the groups that are whole. If no group is whole, or a
 * required group is not (see waybill_controller_options_t), it waits about 5 s for the missing
 * ranks, and then ends with WAYBILL_UNAVAILABLE. All waits, also for a lost controller to come
 * back, end at the deadline of the publish, and PUBLISHED comes at most one second later.
 *
 * - WAYBILL_INVALID_ARGUMENT: the version is 0; after_event is given and no region is GPU memory;
 *   or the driver does not accept after_event as an event.
 * - WAYBILL_FAILED_PRECONDITION: the trainer has not joined, or has left; or after_event was
 *   recorded in a stream that is being captured into a CUDA graph.
 * - WAYBILL_DEADLINE_EXCEEDED: the deadline is in the past.
 *
 * Status of the event:
 * - WAYBILL_FAILED_PRECONDITION: this version or a greater one is committed or sent already; an
 *   earlier one is held; a worker refused the update; another trainer holds different bytes of the
 *   same elements; with `tensors` or `at_most_ppm`, the trainer has no option `changes`, or another
 *   trainer has made the version of something else. A version whose publish failed may be published
 *   again.
 * - WAYBILL_INVALID_ARGUMENT: fail_on_nonfinite is set, and there are NaNs or infinities; or no
 *   trainer has one of `tensors`; or at_most_ppm is above a million.
 * - WAYBILL_INTERNAL: a GPU has failed.
 * - WAYBILL_DEADLINE_EXCEEDED, WAYBILL_UNAVAILABLE, WAYBILL_DATA_LOSS, WAYBILL_CANCELLED: the error
 *   says why.
 *
 * Without until_committed, an error means that the version was SENT to no group. With it, the
 * status is the first error of any group that the version was sent to; other groups may show the
 * version, and the OUTCOME events say which.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_trainer_publish(waybill_trainer_t* trainer, const waybill_publish_options_t* options,
                        uint64_t token, waybill_update_t** out_update, waybill_error_t** error);

/* Ends the hold of the last version that was published with `hold`, if there is one. One RELEASED
 * event with `token` follows, within a second or so also while the version is being sent; from then
 * on the memory may change.
 *
 * - WAYBILL_FAILED_PRECONDITION: the trainer has not joined, or has left.
 *
 * Status of the event:
 * - WAYBILL_FAILED_PRECONDITION: another release has not ended.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_trainer_release(waybill_trainer_t* trainer,
                                                                      uint64_t token,
                                                                      waybill_error_t** error);

WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_trainer_progress(
    const waybill_trainer_t* trainer, waybill_progress_t* out_progress, waybill_error_t** error);
/* Returns, as JSON, what this trainer has chosen and why: its identity, the job's groups, its lanes
 * with their paths, and counters. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_trainer_describe(
    const waybill_trainer_t* trainer, waybill_blob_t** out_json, waybill_error_t** error);

/* Leaves the job. Publishes that are not finished end with WAYBILL_CANCELLED: in a PUBLISHED event,
 * or in a DECIDED event if PUBLISHED has come already. One LEFT event follows, when the controller
 * has heard of it, or half a second later if it does not answer. Afterwards the trainer can only be
 * queried and destroyed.
 *
 * - WAYBILL_FAILED_PRECONDITION: the trainer has left.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_trainer_leave(waybill_trainer_t* trainer,
                                                                    uint64_t token,
                                                                    waybill_error_t** error);

/* Leaves at once, and destroys the trainer. Calls under way end with WAYBILL_CANCELLED, each with
 * its event. [waits] until nothing reads the regions, a few seconds at most. */
WAYBILL_API void waybill_trainer_destroy(waybill_trainer_t* trainer);

/* ---- worker ---- */

enum {
  /* Waybill has two buffers. A commit shows the other one. */
  WAYBILL_MODE_SHADOW = 1,
  /* Waybill receives into a buffer of its own, and copies it into the caller's memory between
   * ARRIVED and COMMIT. The copy waits for snapshots, and for no other reader: set
   * WAYBILL_ASK_ARRIVED, and stop reading before you accept. */
  WAYBILL_MODE_SHADOW_COPY = 2,
  /* The memory is written directly between PREPARE and COMMIT. Set WAYBILL_ASK_PREPARE, and pause
   * the engine before you accept: without this bit, writing waits for nobody but snapshots. */
  WAYBILL_MODE_IN_PLACE = 3
};

/* Notices that want an answer by waybill_update_accept() or waybill_update_refuse(). Bits. */
enum { WAYBILL_ASK_PREPARE = 1, WAYBILL_ASK_ARRIVED = 2, WAYBILL_ASK_COMMIT = 4 };

typedef struct waybill_worker_options { /* From capi/options.toml. */
  size_t struct_size;
  /* The worker's identity, and how it reaches its peers. */
  const waybill_rank_options_t* rank;
  /* The tensors and shards that the worker holds. */
  const waybill_manifest_t* manifest;
  /* One for each region of the manifest, of the same size; or none. */
  waybill_region_t* const* regions;
  /* 0: Waybill allocates the memory. */
  uint32_t region_count;
  /* How the worker holds versions: WAYBILL_MODE_*. Default: shadow. */
  uint32_t mode;
  /* The notices whose answer an update waits for: bits WAYBILL_ASK_*. Waybill itself accepts all
   * others. Default: none. */
  uint32_t ask;
  /* How many threads verify what arrives. Default: 1, or 4 if the worker receives on a GPU. */
  uint32_t verify_threads;
  waybill_queue_t* queue;
  /* A worker whose group has missed a version gets it from another group that shows it, as an
   * update like any other, soon after it has joined. 1: it waits for the next publish. */
  uint32_t no_catch_up;
  /* The index of a GPU, plus 1. Waybill allocates buffers in its memory, to which the network then
   * writes. Default: the host's memory. */
  uint32_t gpu;
  /* 1: the worker gets versions when it fetches them, and no others: for rollouts in the middle of
   * long generations, evaluators, and whoever wants the newest weights now and then. No publish
   * waits for its group, whose workers all have to be like that. The trainers hold their versions
   * or keep images, or other groups show them. Default: each version comes when it is published. */
  uint32_t updates_when_asked;
} waybill_worker_options_t;
#define WAYBILL_WORKER_OPTIONS_INIT \
  {sizeof(waybill_worker_options_t), NULL, NULL, NULL, 0, 0, 0, 0, NULL, 0, 0, 0}

/* Creates a worker: a rank that serves inference. It opens the GPU of its regions, if there is one,
 * and no connection before waybill_worker_join().
 *
 *   mode         no regions    regions
 *   shadow       two buffers   refused: the caller's memory cannot be swapped
 *   shadow-copy  refused       one buffer, copied into the regions
 *   in-place     one buffer    written directly
 *
 * - WAYBILL_INVALID_ARGUMENT: the manifest is wrong, has undeclared holes or has no shards; or the
 *   regions do not match it, overlap or are read-only. The error names them.
 * - WAYBILL_INVALID_ARGUMENT: the mode needs regions or refuses them; an option is out of range; or
 *   this process does not see the GPU.
 * - WAYBILL_UNAVAILABLE: GPU memory is asked for, and this process can use no GPU.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_worker_create(waybill_context_t* context, const waybill_worker_options_t* options,
                      waybill_worker_t** out_worker, waybill_error_t** error);
/* Joins the job as waybill_worker_join() does, and returns how that ended, as
 * waybill_trainer_join_and_wait() does. [waits] likewise. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_worker_join_and_wait(waybill_worker_t* worker,
                                                                           int64_t deadline_ns,
                                                                           waybill_error_t** error);

/* Joins the job, as waybill_trainer_join() does. The status of the event can also be:
 *
 * - WAYBILL_RESOURCE_EXHAUSTED: there is not enough memory for the buffers.
 * - WAYBILL_FAILED_PRECONDITION: the network cannot write to the GPU's memory. The error has every
 *   way that was tried, and the remedy.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_worker_join(waybill_worker_t* worker,
                                                                  int64_t deadline_ns,
                                                                  uint64_t token,
                                                                  waybill_error_t** error);

/* For an engine that unmaps its memory while it sleeps. Releases what is registered of the regions'
 * GPU memory, whose pages the registrations would keep. Until waybill_worker_resume() the regions
 * are neither read nor written, and updates are refused. The controller is not told: the rank stays
 * joined. It takes as long as the driver needs, and waits for nothing else.
 *
 * - WAYBILL_FAILED_PRECONDITION: an update is being received or waits to be shown, or a snapshot is
 *   held: try again later. Or the worker has not joined.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_worker_pause(waybill_worker_t* worker,
                                                                   waybill_error_t** error);
/* Ends the pause; without one it does nothing. The regions must be memory again, at the same
 * addresses. The next update registers it, before anything is sent.
 *
 * `contents_kept`: 0 if the weights are lost: then nothing is shown before the next version.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_worker_resume(waybill_worker_t* worker,
                                                                    uint32_t contents_kept,
                                                                    waybill_error_t** error);

/* Asks for the newest version, for a worker that was made with updates_when_asked; it ends with
 * WAYBILL_EVENT_FETCHED, at the latest at `deadline_ns`; 0 means 60 s from now. `version` of the
 * event is shown then: the newest that any group has committed or that all trainers hold, also if
 * it was shown before. A version that is on its way is waited for. It comes as an update like any
 * other, with PREPARE, ARRIVED and COMMIT. The workers of a group get a version once all of them
 * have asked.
 *
 * `at_least` is the least version that will do, and 0 any: the fetch waits until there is one. The
 * version that is shown plus 1 waits for a newer one. Of a group's workers the highest counts.
 *
 * If a version is published meanwhile, the trainers stop sending the old one, and the fetch goes on
 * with the new one. A fetch that takes longer than the time between two publishes succeeds only if
 * another group shows a version.
 *
 * The event's status:
 * - WAYBILL_DEADLINE_EXCEEDED: no newer version could be had, or other workers of the group have
 *   not asked. A version that was on its way may still come.
 * - WAYBILL_FAILED_PRECONDITION: the worker gets versions as they are published.
 * - WAYBILL_CANCELLED: the worker leaves, or another fetch has taken the place of this one.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_worker_fetch(waybill_worker_t* worker,
                                                                   uint64_t at_least,
                                                                   int64_t deadline_ns,
                                                                   uint64_t token,
                                                                   waybill_error_t** error);

typedef struct waybill_worker_state {
  size_t struct_size;
  uint64_t shown_version; /* The version that was shown last. 0: none. */
  uint32_t joined;
  /* 1: the memory holds no whole version, and there are no snapshots. An update is being written in
   * place or copied, or was given up halfway; or resume() was called with contents_kept 0. */
  uint32_t dirty;
  /* 1: the worker voted for a version and lost the controller. It shows the old version until it
   * learns the decision. */
  uint32_t in_doubt;
  uint32_t
      catching_up; /* 1: a version that was missed comes from another group, or from trainers. */
  uint64_t stragglers;         /* Immediates of abandoned updates that came late. */
  uint64_t repeats;            /* Immediates that came twice. */
  uint64_t renewals;           /* Times that an abandoned buffer was renewed. */
  uint64_t unchanged_versions; /* Versions with the bytes that were shown before: see `unchanged` of
                                  waybill_event_t. */
  /* 1: a version is shown, and it is all of the trainers' tensors. 0: they have published it with
   * `tensors` or `at_most_ppm`, so a part of it is older; or none is shown. */
  uint32_t exact;
} waybill_worker_state_t;
#define WAYBILL_WORKER_STATE_INIT {sizeof(waybill_worker_state_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_worker_state(
    const waybill_worker_t* worker, waybill_worker_state_t* out_state, waybill_error_t** error);
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_worker_progress(
    const waybill_worker_t* worker, waybill_progress_t* out_progress, waybill_error_t** error);
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_worker_describe(
    const waybill_worker_t* worker, waybill_blob_t** out_json, waybill_error_t** error);

/* Takes a snapshot: a hold on the shown version. Its bytes do not change until the snapshot is
 * destroyed; an update that needs the buffer waits. `holder` says who reads, and appears in the
 * error if such an update runs into its deadline.
 *
 * - WAYBILL_FAILED_PRECONDITION: nothing is shown yet, or the memory is paused.
 * - WAYBILL_UNAVAILABLE: the memory is being written in place, or an update waits for earlier
 *   snapshots in order to write it; try again after COMMIT or ABORT.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_worker_snapshot(waybill_worker_t* worker, const char* holder,
                        waybill_snapshot_t** out_snapshot, waybill_error_t** error);

/* Digests the memory that is shown now, and compares it with the digests with which the version
 * came: finds what somebody else has written there since. [waits] while it reads all of the memory,
 * on this thread; a commit waits for it as for a snapshot of "verify". Of quantised tensors, what
 * came is compared.
 *
 * `out_version`: the version that is shown, all of which is right.
 *
 * - WAYBILL_DATA_LOSS: something differs; the error names up to 8 pieces of tensors, and counts the
 *   others. The next version repairs it.
 * - WAYBILL_FAILED_PRECONDITION: nothing is shown yet, the memory is paused, or the version was
 *   published without digests.
 * - WAYBILL_UNAVAILABLE: as for waybill_worker_snapshot().
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_worker_verify(waybill_worker_t* worker,
                                                                    uint64_t* out_version,
                                                                    waybill_error_t** error);

/* Leaves the job, as waybill_trainer_leave() does. In shadow-copy mode, a commit that has begun
 * ends first; it waits up to 10 s for snapshots. What is shown can still be read. */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_worker_leave(waybill_worker_t* worker,
                                                                   uint64_t token,
                                                                   waybill_error_t** error);
/* Leaves and destroys the worker, as waybill_trainer_destroy() does. [waits] as long as
 * waybill_worker_leave() may take. Existing snapshots keep Waybill's buffers alive, but not the
 * caller's regions. */
WAYBILL_API void waybill_worker_destroy(waybill_worker_t* worker);

/* Returns 0 for an invalid handle. */
WAYBILL_API uint64_t waybill_snapshot_version(const waybill_snapshot_t* snapshot);
/* Returns the bytes of one region of the worker's manifest, in the memory of the GPU where that is
 * shown. They live until the snapshot is destroyed.
 *
 * - WAYBILL_OUT_OF_RANGE: there is no such region.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t
waybill_snapshot_region(const waybill_snapshot_t* snapshot, uint32_t region_index,
                        const void** out_data, uint64_t* out_size_bytes, waybill_error_t** error);
WAYBILL_API void waybill_snapshot_destroy(waybill_snapshot_t* snapshot);

/* ---- update ---- */

/* Returns 0 for an invalid handle. */
WAYBILL_API uint64_t waybill_update_version(const waybill_update_t* update);

/* Accepts the update of an event. `event` names the notice that it answers: WAYBILL_EVENT_PREPARE,
 * _ARRIVED or _COMMIT of a worker, or _ARRIVED of a trainer. If the update was aborted meanwhile,
 * the answer does nothing and the call returns WAYBILL_OK.
 *
 * - WAYBILL_INVALID_ARGUMENT: `event` is none of these, or `update` was returned by
 *   waybill_trainer_publish().
 * - WAYBILL_FAILED_PRECONDITION: that notice was answered, or wanted no answer.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_update_accept(waybill_update_t* update,
                                                                    uint32_t event,
                                                                    waybill_error_t** error);
/* Refuses the update of an event. In answer to PREPARE or ARRIVED, no worker of the group, or for a
 * trainer's answer of any group, shows the version. In answer to COMMIT it says that the version
 * could not be put into use: it is shown all the same, and the group's OUTCOME is an error. Every
 * trainer gets `reason`. Statuses are those of waybill_update_accept().
 *
 * A trainer may also refuse what it has published with hold_commit, by the update of
 * waybill_trainer_publish() and WAYBILL_EVENT_ARRIVED: at any time until the version is decided.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_update_refuse(waybill_update_t* update,
                                                                    uint32_t event,
                                                                    const char* reason,
                                                                    waybill_error_t** error);

/* Cancels a trainer's publish, which then ends with WAYBILL_CANCELLED. If the version is SENT
 * already, only the wait of until_committed ends: the groups go on, and each has its OUTCOME. After
 * the PUBLISHED event it does nothing.
 *
 * - WAYBILL_INVALID_ARGUMENT: the update is an event's.
 */
WAYBILL_API WAYBILL_MUST_USE waybill_status_t waybill_update_cancel(waybill_update_t* update,
                                                                    waybill_error_t** error);
/* Destroys the handle only. A publish continues, and an event's update is not answered by it. */
WAYBILL_API void waybill_update_destroy(waybill_update_t* update);

#ifdef __cplusplus
}
#endif

#endif /* WAYBILL_CAPI_WAYBILL_H_ */
