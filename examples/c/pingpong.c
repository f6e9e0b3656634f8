/* Moves four floats: `pingpong trainer HOST:PORT` sends, `pingpong worker HOST:PORT [GROUP]` shows. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <waybill/waybill.h>

static waybill_error_t* error;
static void check(waybill_status_t status) {
  if (status == WAYBILL_OK) return;
  fprintf(stderr, "%s\n", waybill_error_message(error));
  exit(1);
}
static void await(waybill_queue_t* queue, uint32_t wanted) {
  for (uint32_t kind = 0; kind != wanted;) {
    waybill_event_t event = WAYBILL_EVENT_INIT;
    check(waybill_queue_wait(queue, 0, &event, &error));
    error = event.error, check(event.status);
    if (event.answer_wanted) check(waybill_update_accept(event.update, event.kind, &error));
    kind = event.kind;
    waybill_event_release(&event);
  }
}
int main(int argc, char** argv) {
  float weights[4] = {0};
  waybill_context_t* context;
  waybill_queue_t* queue;
  waybill_manifest_t* manifest;
  waybill_region_t* region;
  if (argc < 3) return fprintf(stderr, "usage: pingpong trainer|worker HOST:PORT [GROUP]\n"), 2;
  check(waybill_context_create(NULL, &context, &error));
  check(waybill_queue_create(context, &queue, &error));
  check(waybill_manifest_create(&manifest, &error));
  check(waybill_manifest_add_region(manifest, "weights", sizeof weights, NULL, &error));
  check(waybill_manifest_add_tensor(manifest, "w", WAYBILL_F32, (int64_t[]){4}, 1, NULL, &error));
  waybill_shard_t all = WAYBILL_SHARD_INIT; /* All of tensor 0, at the start of region 0. */
  check(waybill_manifest_add_shard(manifest, &all, NULL, &error));
  waybill_region_options_t lent = {sizeof lent, .data = weights, .size_bytes = sizeof weights};
  check(waybill_region_create(context, &lent, &region, &error));
  waybill_rank_options_t rank = {
      sizeof rank, argv[2], .token = getenv("WAYBILL_TOKEN"), .group = argv[3]};
  if (argv[1][0] == 't') {
    waybill_trainer_t* trainer;
    waybill_trainer_options_t options = {sizeof options, &rank, manifest, &region, 1, .queue = queue};
    check(waybill_trainer_create(context, &options, &trainer, &error));
    check(waybill_trainer_join(trainer, 0, 0, &error));
    await(queue, WAYBILL_EVENT_JOINED);
    for (int i = 0; i < 4; ++i) weights[i] = (float)i + 0.5f;
    waybill_publish_options_t publish = {sizeof publish, (uint64_t)time(NULL), .until_committed = 1};
    check(waybill_trainer_publish(trainer, &publish, 0, NULL, &error));
    await(queue, WAYBILL_EVENT_PUBLISHED);
  } else {
    waybill_worker_t* worker;
    waybill_worker_options_t options = {sizeof options, &rank, manifest, &region, 1, .queue = queue};
    options.mode = WAYBILL_MODE_IN_PLACE, options.ask = WAYBILL_ASK_COMMIT;
    check(waybill_worker_create(context, &options, &worker, &error));
    check(waybill_worker_join(worker, 0, 0, &error));
    await(queue, WAYBILL_EVENT_COMMIT);
  }
  waybill_region_destroy(region); /* The rank has left, and the memory is ours again. */
  return printf("%s: %g %g %g %g\n", argv[1], weights[0], weights[1], weights[2], weights[3]) < 0;
}
