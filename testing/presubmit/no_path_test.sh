#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: no_path_test.sh FILE: FILE holds the path between two targets, one a line; it must be empty.
if [ -s "$1" ]; then
  printf 'a dependency that must not be, each line on the next:\n' >&2
  cat "$1" >&2
  exit 1
fi
