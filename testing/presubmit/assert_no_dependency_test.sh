#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A path between two targets, or into a package, makes such an assertion fail, and is shown.
cd testing/presubmit || exit 1

# fails_showing FILE LINE: a line of what is said begins so.
fails_showing() {
  local said
  if said=$(./no_path_test.sh "$1" 2>&1); then
    echo "no_path_test.sh passed although $1 holds a path" >&2
    exit 1
  fi
  grep -q "^$2" <<<"$said" || exit 1
}

fails_showing a_path //testing/presubmit:build_files
fails_showing a_path_into //tools/build_rules:
