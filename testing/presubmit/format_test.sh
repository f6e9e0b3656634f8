#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything is formatted, and the formatters' own checks have nothing to say.
exec "$(dirname "$(realpath WORKSPACE)")/tools/format" --check
