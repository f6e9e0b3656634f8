//! The C ABI, in the shapes that cxx takes. A handle is the number that it is in C.

use crate::context::LogSink;

#[cxx::bridge(namespace = "waybill::rust_shim")]
mod bridge {
    /// What a call returned; code 0 is success.
    #[derive(Default)]
    struct Status {
        code: i32,
        scope: u32,
        message: String,
    }

    struct ControllerConfig<'a> {
        listen: &'a str,
        job: &'a str,
        token: &'a str,
        decision_log: &'a str,
        trainers: u32,
        workers: u32,
        join_timeout_ns: i64,
    }

    struct RankConfig<'a> {
        controller: &'a str,
        job: &'a str,
        token: &'a str,
        group: &'a str,
        rank: u32,
        world: u32,
        fabric: &'a str,
        host: &'a str,
        nics: &'a str,
        gid_index: u32,
        ack_timeout: u32,
        traffic_class: u32,
        user: u64,
    }

    struct TrainerConfig<'a> {
        manifest: u64,
        regions: &'a [u64],
        stage_threads: u32,
        ring_bytes: u64,
        queue: u64,
    }

    struct WorkerConfig<'a> {
        manifest: u64,
        regions: &'a [u64],
        mode: u32,
        ask: u32,
        verify_threads: u32,
        queue: u64,
    }

    struct PublishConfig {
        version: u64,
        deadline_ns: i64,
        until_committed: bool,
        no_digests: bool,
        fail_on_nonfinite: bool,
        after_event: usize,
    }

    struct ShardConfig<'a> {
        tensor_index: u32,
        region_index: u32,
        offset_bytes: u64,
        dtype: u32,
        content: u32,
        quantisation: &'a [Quantisation], // One or none.
        begin: &'a [i64],
        end: &'a [i64], // As long as `begin`; so are strides, unless they are empty.
        strides: &'a [i64],
    }

    struct PaddingConfig<'a> {
        region_index: u32,
        element_bytes: u32,
        offset_bytes: u64,
        extents: &'a [i64],
        strides: &'a [i64],
    }

    #[derive(Default)]
    struct RawEvent {
        kind: u32,
        token: u64,
        user: u64,
        version: u64,
        status: Status,
        answer_wanted: bool,
        pause_ns: u64,
        update: u64,
        group: String,
    }

    /// How elements of a matrix are stored in few bits with a scale for each block. The default is
    /// what DeepSeek-V3's checkpoints have. Types are numbers of [`DType`](crate::DType).
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Quantisation {
        /// The dtype of the elements; 0: `F8_E4M3`.
        dtype: u32,
        /// Elements are rounded to this first; 0: `BF16`.
        from_dtype: u32,
        /// 0: `F32`.
        scale_dtype: u32,
        /// How scales are rounded; 0 or 1: not at all; 2: up to a power of two; 3: as MX does it.
        rounding: u32,
        /// 0 or 1: `x * (1 / s)`; 2: `x * (largest / magnitude)`; 3: `x / s`.
        division: u32,
        /// `1 / s` is stored instead of `s`.
        stores_reciprocal: bool,
        /// The lower bound of a block's largest magnitude; 0: 1e-4. Negative: no bound.
        epsilon: f32,
        /// 0: 128; `u32::MAX`: the whole matrix.
        block_rows: u32,
        /// Likewise.
        block_columns: u32,
        /// A scale is stored for each so many rows; 0: the block's.
        scale_rows: u32,
        /// Likewise.
        scale_columns: u32,
    }

    /// A plan in numbers.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct PlanSummary {
        /// Equal plans, equal hashes, on every host.
        hash: u64,
        /// How many bytes arrive at workers in each update.
        bytes: u64,
        /// Boxes that go from one rank to another.
        routes: u64,
        /// How many writes the routes become if nothing can be mapped.
        writes: u64,
        /// How many maxima of split quantisation blocks trainers trade.
        maxima: u64,
        /// How many messages they are traded by.
        maxima_messages: u64,
        /// The busiest rank over the lower bound of any assignment; 1 is perfect.
        busiest_to_bound: f64,
        /// The busiest trainer over the mean.
        busiest_to_mean: f64,
    }

    /// The state of a worker: what it shows, and what came late.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct WorkerState {
        /// 0: none.
        shown_version: u64,
        /// It is part of the job.
        joined: bool,
        /// In place: written and not committed; nothing can be read.
        dirty: bool,
        /// It voted for a version and lost the controller: it shows the old version until it has
        /// heard the decision.
        in_doubt: bool,
        /// How many late words of abandoned updates have come.
        stragglers: u64,
        /// How many immediates have come twice.
        repeats: u64,
        /// How many buffers were fenced.
        renewals: u64,
    }

    /// How far the latest update of a rank has come. Counts of equal plans are equal.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Progress {
        /// The update's.
        version: u64,
        /// How many bytes this rank sends, or receives, in every update.
        planned_bytes: u64,
        /// Handed to the network or stored; of a worker: verified.
        bytes: u64,
        /// How many writes a trainer has posted to a network. What follows is a trainer's too.
        writes: u64,
        /// Chunks stored at their final address through a mapping.
        stores: u64,
        /// How many immediates rode on last writes.
        immediates: u64,
        /// To other trainers.
        maxima_messages: u64,
        /// Of them.
        maxima_bytes: u64,
        /// NaNs and infinities among what was quantised.
        nonfinite: u64,
        /// By [`Stage`](crate::Stage), on the clock of [`now_ns`](crate::now_ns); 0: not there, or
        /// not yet.
        begin_ns: [i64; 7],
        /// Likewise.
        end_ns: [i64; 7],
    }

    extern "Rust" {
        type LogSink;
        fn log(self: &LogSink, level: u32, line: &str);
    }

    unsafe extern "C++" {
        include!("waybill/src/shim.h");

        fn version() -> &'static str;
        fn abi_version() -> u32;
        fn status_name(status: i32) -> &'static str;
        fn now_ns() -> i64;
        fn dtype_size(dtype: u32) -> u32;
        fn dtype_name(dtype: u32) -> &'static str;

        /// The sink is leaked: the context's last child may outlive everything else.
        fn context_create(sink: Box<LogSink>, logs: bool, context: &mut u64) -> Status;
        fn context_describe(context: u64, json: &mut String) -> Status;
        fn context_destroy(context: u64);

        fn queue_create(context: u64, queue: &mut u64) -> Status;
        /// False: the queue was destroyed.
        fn queue_wait(queue: u64, event: &mut RawEvent) -> bool;
        fn queue_post(queue: u64, token: u64);
        fn queue_destroy(queue: u64);

        /// # Safety
        /// The memory is there, and nobody else writes to it while Waybill uses it, until
        /// region_destroy() has returned.
        unsafe fn region_create(
            context: u64,
            data: *mut u8,
            size_bytes: u64,
            kind: u32,
            read_only: bool,
            name: &str,
            region: &mut u64,
        ) -> Status;
        fn region_destroy(region: u64);

        fn quantisation_named(name: &str, quantisation: &mut Quantisation) -> Status;
        fn manifest_create(manifest: &mut u64) -> Status;
        fn manifest_add_region(
            manifest: u64,
            name: &str,
            size_bytes: u64,
            index: &mut u32,
        ) -> Status;
        fn manifest_add_tensor(
            manifest: u64,
            name: &str,
            dtype: u32,
            shape: &[i64],
            index: &mut u32,
        ) -> Status;
        fn manifest_add_shard(manifest: u64, shard: &ShardConfig, index: &mut u32) -> Status;
        fn manifest_add_padding(manifest: u64, padding: &PaddingConfig, index: &mut u32) -> Status;
        fn manifest_add_alias(
            manifest: u64,
            name: &str,
            tensor_index: u32,
            index: &mut u32,
        ) -> Status;
        fn manifest_region_count(manifest: u64) -> u32;
        fn manifest_region_size(manifest: u64, region_index: u32) -> u64;
        fn manifest_encode(manifest: u64, bytes: &mut Vec<u8>) -> Status;
        fn manifest_decode(bytes: &[u8], manifest: &mut u64) -> Status;
        fn manifest_describe(manifest: u64, json: &mut String) -> Status;
        fn manifest_destroy(manifest: u64);

        fn layout_open(checkpoint: &str, model: &str, layers: u32, layout: &mut u64) -> Status;
        fn layout_trainer_manifest(
            layout: u64,
            sharding: &str,
            rank: u32,
            manifest: &mut u64,
        ) -> Status;
        fn layout_worker_manifest(
            layout: u64,
            sharding: &str,
            rank: u32,
            format: &str,
            dtype: &str,
            manifest: &mut u64,
        ) -> Status;
        fn layout_worker_parameters(
            layout: u64,
            sharding: &str,
            rank: u32,
            format: &str,
            dtype: &str,
            json: &mut String,
        ) -> Status;
        fn layout_load(layout: u64, manifest: u64, data: &mut [u8]) -> Status;
        fn layout_destroy(layout: u64);

        fn plan_build(
            trainers: &[u64],
            workers: &[u64],
            smallest_piece_bytes: u64,
            plan: &mut u64,
        ) -> Status;
        fn plan_summarise(plan: u64, summary: &mut PlanSummary) -> Status;
        fn plan_explain(plan: u64, format: &str, text: &mut String) -> Status;
        fn plan_destroy(plan: u64);

        fn controller_start(
            context: u64,
            config: &ControllerConfig,
            controller: &mut u64,
        ) -> Status;
        fn controller_address(controller: u64, address: &mut String) -> Status;
        fn controller_status(controller: u64, json: &mut String) -> Status;
        fn controller_query(
            context: u64,
            address: &str,
            token: &str,
            deadline_ns: i64,
            json: &mut String,
        ) -> Status;
        fn controller_destroy(controller: u64);

        fn trainer_create(
            context: u64,
            rank: &RankConfig,
            config: &TrainerConfig,
            trainer: &mut u64,
        ) -> Status;
        fn trainer_join(trainer: u64, deadline_ns: i64, token: u64) -> Status;
        fn trainer_publish(
            trainer: u64,
            config: &PublishConfig,
            token: u64,
            update: &mut u64,
        ) -> Status;
        fn trainer_progress(trainer: u64, progress: &mut Progress) -> Status;
        fn trainer_describe(trainer: u64, json: &mut String) -> Status;
        fn trainer_leave(trainer: u64, token: u64) -> Status;
        fn trainer_destroy(trainer: u64);

        fn worker_create(
            context: u64,
            rank: &RankConfig,
            config: &WorkerConfig,
            worker: &mut u64,
        ) -> Status;
        fn worker_join(worker: u64, deadline_ns: i64, token: u64) -> Status;
        fn worker_state(worker: u64, state: &mut WorkerState) -> Status;
        fn worker_progress(worker: u64, progress: &mut Progress) -> Status;
        fn worker_describe(worker: u64, json: &mut String) -> Status;
        fn worker_snapshot(worker: u64, holder: &str, snapshot: &mut u64) -> Status;
        fn worker_leave(worker: u64, token: u64) -> Status;
        fn worker_destroy(worker: u64);

        fn snapshot_version(snapshot: u64) -> u64;
        /// The address and the size are written where it succeeds.
        fn snapshot_region(
            snapshot: u64,
            region_index: u32,
            address: &mut usize,
            size: &mut usize,
        ) -> Status;
        fn snapshot_destroy(snapshot: u64);

        fn update_accept(update: u64, event: u32) -> Status;
        fn update_refuse(update: u64, event: u32, reason: &str) -> Status;
        fn update_cancel(update: u64) -> Status;
        fn update_destroy(update: u64);
    }
}

pub(crate) use bridge::*;
pub use bridge::{PlanSummary, Progress, Quantisation, WorkerState};
