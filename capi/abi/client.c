/* SPDX-License-Identifier: Apache-2.0 */

/* A program of one release of the header, which WAYBILL_HEADER names, on a library of another one:
 * one version goes from a trainer to a worker. Exits with 1 and a word where anything is wrong. */
#include WAYBILL_HEADER

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static waybill_error_t* error;

static void check(waybill_status_t status, const char* what) {
  if (status == WAYBILL_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, waybill_status_name(status), waybill_error_message(error));
  exit(1);
}

static void expect(int right, const char* what) {
  if (right) return;
  fprintf(stderr, "not so: %s\n", what);
  exit(1);
}

static void await(waybill_queue_t* queue, uint32_t wanted) {
  for (uint32_t kind = 0; kind != wanted;) {
    waybill_event_t event = WAYBILL_EVENT_INIT;
    check(waybill_queue_wait(queue, 0, &event, &error), "wait");
    expect(event.struct_size == sizeof event, "the event keeps its size");
    error = event.error;
    check(event.status, "event");
    kind = event.kind;
    waybill_event_release(&event);
  }
}

static waybill_manifest_t* make_manifest(void) {
  const int64_t shape[] = {4};
  waybill_manifest_t* manifest;
  waybill_shard_t all = WAYBILL_SHARD_INIT;
  check(waybill_manifest_create(&manifest, &error), "manifest");
  check(waybill_manifest_add_region(manifest, "r", 16, NULL, &error), "region");
  check(waybill_manifest_add_tensor(manifest, "w", WAYBILL_F32, shape, 1, NULL, &error), "tensor");
  check(waybill_manifest_add_shard(manifest, &all, NULL, &error), "shard");
  return manifest;
}

#ifdef LATER_FIELD
static void a_field_that_is_unknown_is_refused_unless_zero(waybill_context_t* context) {
  waybill_region_options_t options = WAYBILL_REGION_OPTIONS_INIT;
  waybill_region_t* region = NULL;
  check(waybill_region_create(context, &options, &region, &error), "region");
  waybill_region_destroy(region);
  options.LATER_FIELD = 1;
  expect(waybill_region_create(context, &options, &region, &error) == WAYBILL_UNIMPLEMENTED,
         "a field that the library does not know is UNIMPLEMENTED");
  expect(strstr(waybill_error_message(error), "older than the caller") != NULL, "it says why");
  waybill_error_destroy(error);
}
#endif

int main(void) {
  waybill_context_t* context;
  waybill_queue_t* queue;
  waybill_context_options_t context_options = WAYBILL_CONTEXT_OPTIONS_INIT;
  check(waybill_context_create(&context_options, &context, &error), "context");
  check(waybill_queue_create(context, &queue, &error), "queue");
#ifdef LATER_FIELD
  a_field_that_is_unknown_is_refused_unless_zero(context);
#endif
  waybill_controller_t* controller;
  waybill_controller_options_t controlling = WAYBILL_CONTROLLER_OPTIONS_INIT;
  controlling.listen = "127.0.0.1:0";
  check(waybill_controller_start(context, &controlling, &controller, &error), "controller");
  waybill_blob_t* address;
  check(waybill_controller_address(controller, &address, &error), "address");

  float weights[4] = {1, 2, 3, 4};
  waybill_region_t* region;
  waybill_region_options_t lent = WAYBILL_REGION_OPTIONS_INIT;
  lent.data = weights;
  lent.size_bytes = sizeof weights;
  check(waybill_region_create(context, &lent, &region, &error), "region");

  waybill_manifest_t* manifest = make_manifest();
  waybill_rank_options_t rank = WAYBILL_RANK_OPTIONS_INIT;
  rank.controller = (const char*)waybill_blob_data(address);
  waybill_trainer_t* trainer;
  waybill_trainer_options_t training = WAYBILL_TRAINER_OPTIONS_INIT;
  training.rank = &rank;
  training.manifest = manifest;
  training.regions = &region;
  training.region_count = 1;
  training.queue = queue;
  check(waybill_trainer_create(context, &training, &trainer, &error), "trainer");
  waybill_worker_t* worker;
  waybill_worker_options_t working = WAYBILL_WORKER_OPTIONS_INIT;
  working.rank = &rank;
  working.manifest = manifest;
  working.queue = queue;
  check(waybill_worker_create(context, &working, &worker, &error), "worker");
  check(waybill_trainer_join(trainer, 0, 0, &error), "join");
  check(waybill_worker_join(worker, 0, 0, &error), "join");
  await(queue, WAYBILL_EVENT_JOINED);
  await(queue, WAYBILL_EVENT_JOINED);
  waybill_publish_options_t publishing = WAYBILL_PUBLISH_OPTIONS_INIT;
  publishing.version = 3;
  publishing.until_committed = 1;
  check(waybill_trainer_publish(trainer, &publishing, 0, NULL, &error), "publish");
  await(queue, WAYBILL_EVENT_PUBLISHED);

  waybill_progress_t progress = WAYBILL_PROGRESS_INIT;
  check(waybill_worker_progress(worker, &progress, &error), "progress");
  expect(progress.struct_size == sizeof progress && progress.bytes == 16, "all bytes are there");
  waybill_worker_state_t state = WAYBILL_WORKER_STATE_INIT;
  check(waybill_worker_state(worker, &state, &error), "state");
  expect(state.struct_size == sizeof state && state.shown_version == 3, "version 3 is shown");
  uint64_t verified = 0;
  check(waybill_worker_verify(worker, &verified, &error), "verify");
  expect(verified == 3, "version 3 is what was sent");
  waybill_snapshot_t* snapshot;
  check(waybill_worker_snapshot(worker, "client", &snapshot, &error), "snapshot");
  const void* shown;
  uint64_t size;
  check(waybill_snapshot_region(snapshot, 0, &shown, &size, &error), "region");
  expect(size == sizeof weights && memcmp(shown, weights, size) == 0, "it is what was sent");

  waybill_snapshot_destroy(snapshot);
  waybill_worker_destroy(worker);
  waybill_trainer_destroy(trainer);
  waybill_region_destroy(region);
  waybill_manifest_destroy(manifest);
  waybill_blob_destroy(address);
  waybill_controller_destroy(controller);
  waybill_queue_destroy(queue);
  waybill_context_destroy(context);
  return 0;
}
