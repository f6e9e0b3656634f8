#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Whole jobs of real processes: 2x2 and 2x3 in every mode, 3x2 quantised, 2x3 with relays, a rank
# killed, a worker stopped beyond the update's deadline. Over verbs where WAYBILL_RXE_NODES names
# devices, else over tcp. The models are made here: the smallest that there is otherwise moves 190 MB.
set -euo pipefail

waybill=$PWD/tools/waybill/waybill
scratch=$(mktemp -d "${TEST_TMPDIR:-/tmp}/job.XXXXXX")
fabric=tcp nodes=()
if [ -n "${WAYBILL_RXE_NODES:-}" ]; then
  fabric=verbs
  IFS=';' read -ra nodes <<<"$WAYBILL_RXE_NODES"
fi
started=()
trap 'for pid in "${started[@]}"; do kill -KILL "$pid" 2>/dev/null || :; done; rm -rf "$scratch"' EXIT

fail() { printf '%s\n' "$*" >&2; exit 1; }

# safetensors FOLDER HEADER: what is on standard input becomes the tensors.
safetensors() {
  mkdir "$1"
  {
    # shellcheck disable=SC2059
    printf "\\x$(printf %02x $((${#2} & 255)))\\x$(printf %02x $((${#2} >> 8)))\\0\\0\\0\\0\\0\\0"
    printf '%s' "$2"
    cat
  } >"$1/model.safetensors"
}

# Two matrices, with different bytes in each row.
make_checkpoint() {
  local header='{"a":{"dtype":"BF16","shape":[96,64],"data_offsets":[0,12288]},'
  header+='"b":{"dtype":"F32","shape":[33,40],"data_offsets":[12288,17568]}}'
  local text
  text=$(seq -w 1 3514 | tr '\n' '+')
  printf '%s' "${text:0:17568}" | safetensors "$scratch/model" "$header"
}

# A model of one layer, of numbers from 2^-31 to 2^-3 that are larger in some rows than in others.
make_layer() {
  local layer=model.layers.0 header='' end=0 begin name rows columns
  while read -r name rows columns; do
    begin=$end
    end=$((begin + rows * columns * 2))
    [ "$columns" = 1 ] || rows+=,$columns
    header+=",\"$name.weight\":{\"dtype\":\"BF16\",\"shape\":[$rows],"
    header+="\"data_offsets\":[$begin,$end]}"
  done <<EOF
model.embed_tokens 64 72
model.norm 72 1
$layer.input_layernorm 72 1
$layer.post_attention_layernorm 72 1
$layer.self_attn.q_norm 32 1
$layer.self_attn.k_norm 32 1
$layer.self_attn.q_proj 64 72
$layer.self_attn.k_proj 64 72
$layer.self_attn.v_proj 64 72
$layer.self_attn.o_proj 72 64
$layer.mlp.gate_proj 160 72
$layer.mlp.up_proj 160 72
$layer.mlp.down_proj 72 160
EOF
  awk -v bytes=$end 'BEGIN {
    srand(5)
    for (i = 0; i < bytes; i += 2)
      printf "%c%c", 33 + int(90 * rand()), 48 + int(i / 3000) % 9 + int(5 * rand())
  }' | safetensors "$scratch/layer" "{${header:1}}"
  cat >"$scratch/layer/config.json" <<EOF
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 72,
 "intermediate_size": 160, "num_hidden_layers": 1, "num_attention_heads": 2,
 "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 64, "tie_word_embeddings": true}
EOF
}

demo() {
  "$waybill" demo --no-bound --fabric "$fabric" --checkpoint "$scratch/model" --trainers 2 "$@" 2>&1
}

# expect_in TEXT WORDS...
expect_in() {
  local text=$1 words
  shift
  for words; do
    [[ $text == *"$words"* ]] || fail "not said: $words"$'\n'"$text"
  done
}

# Every byte of every version is checked by the demo itself.
demos_are_right() {
  local how
  for how in {2,3}' --mode '{shadow,shadow-copy,in-place}; do
    # shellcheck disable=SC2086
    demo --versions 2 --workers $how >"$scratch/out" || fail "2 x $how: $(<"$scratch/out")"
  done
}

# Trainers trade the maxima of blocks that they own together.
a_quantised_job_is_right() {
  make_layer
  "$waybill" demo --no-bound --fabric "$fabric" --checkpoint "$scratch/layer" --format fp8-block --trainers 3 \
    --workers 2 --versions 2 >"$scratch/out" 2>&1 || fail "quantised: $(<"$scratch/out")"
}

# expect_whole TEXT WORKER...: all of them show the old version, or, if it was decided before the
# loss, all of them the new one.
expect_whole() {
  local text=$1 worker shows='still shows version 1'
  shift
  [[ $text == *"$shows"* ]] || shows='shows version 2'
  for worker; do expect_in "$text" "$worker $shows, every byte right"; done
}

# Each worker holds all, and gets a part of it from each of the others.
a_relayed_job_is_right() {
  local mode
  for mode in shadow shadow-copy in-place; do
    demo --versions 3 --workers replicas=3 --relays always --mode $mode >"$scratch/out" ||
      fail "relayed, $mode: $(<"$scratch/out")"
  done
}

a_killed_rank_leaves_the_others_whole() {
  local out
  out=$(demo --workers 2 --versions 2 --kill 'trainer 1') && fail "a job without trainer 1: $out"
  expect_in "$out" 'trainer 1'
  expect_whole "$out" 'worker 0' 'worker 1'
  out=$(demo --workers 2 --versions 2 --kill 'worker 1') && fail "a job without worker 1: $out"
  expect_in "$out" 'worker 1'
  expect_whole "$out" 'worker 0'
}

# await FILE WORDS: blocks until FILE, which a process is writing, has them.
await() {
  : >>"$1"  # The process may not have opened it yet.
  timeout 60 grep -q -m 1 -- "$2" <(tail -n +1 -f --pid=$$ "$1") || fail "not in time: $2: $(<"$1")"
}

# rank ROLE NODE OPTIONS...
rank() {
  local role=$1 node=$2 on=()
  shift 2
  if [ ${#nodes[@]} -gt 0 ]; then
    on=(--nics "${nodes[$node]}" --host "10.9.0.${nodes[$node]#rxe}")
  fi
  exec "$waybill" "$role" --rank 0 --world 1 --fabric "$fabric" "${on[@]}" \
    --checkpoint "$scratch/model" --controller "$controller" "$@"
}

a_stopped_worker_ends_the_update_and_no_other() {
  local worker said
  "$waybill" controller --listen 127.0.0.1:0 --state "$scratch/decisions" \
    >"$scratch/controller" 2>&1 &
  started+=($!)
  await "$scratch/controller" ' on '
  controller=$(sed -n 's/.* on \([^,]*\),.*/\1/p;q' "$scratch/controller")
  (rank worker 1) >"$scratch/worker" 2>&1 &
  worker=$!
  started+=($worker)
  # Driven: it goes on after an update that failed.
  coproc trainer { rank trainer 0 --driven --timeout 5 2>&1; }
  started+=("$trainer_PID")
  publish 1
  [[ $said != *error* ]] || fail "version 1: $said"
  await "$scratch/worker" 'version 1 is shown'
  stop $worker
  publish 2
  expect_in "$said" '"error"' 'worker 0'
  kill -CONT $worker
  publish 3
  [[ $said != *error* ]] || fail "version 3: $said $(<"$scratch/worker") $(<"$scratch/controller")"
  await "$scratch/worker" 'version 3 is shown'
  ! grep 'version 2 is shown' "$scratch/worker" || fail 'version 2 was aborted'
}

# stop PID: returns when none of its threads runs any more.
stop() {
  kill -STOP "$1"
  while [ -n "$(grep -L '^State:.T' "/proc/$1"/task/*/status)" ]; do :; done
}

# publish VERSION: what became of it is in $said.
publish() {
  printf 'change %d\npublish %d\n' "$1" "$1" >&"${trainer[1]}"
  while read -r -t 60 said <&"${trainer[0]}"; do
    [[ $said != *'"published"'* ]] || return 0
  done
  fail "version $1: no answer, last: $said"
}

make_checkpoint
for drill in demos_are_right a_quantised_job_is_right a_relayed_job_is_right a_killed_rank_leaves_the_others_whole \
  a_stopped_worker_ends_the_update_and_no_other; do
  begin=$EPOCHREALTIME
  $drill
  printf '%s: %.1f s\n' $drill "$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN {print b - a}')"
done
