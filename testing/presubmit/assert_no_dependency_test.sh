#!/usr/bin/env bash
# A path between two targets makes an assert_no_dependency fail, and is shown.
cd testing/presubmit || exit 1
if said=$(./no_path_test.sh a_path 2>&1); then
  echo 'no_path_test.sh passed although there is a path' >&2
  exit 1
fi
grep -q '^//testing/presubmit:build_files$' <<<"$said"
