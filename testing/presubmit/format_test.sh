#!/usr/bin/env bash
# Everything is formatted, and the formatters' own checks have nothing to say.
exec "$(dirname "$(realpath WORKSPACE)")/tools/format" --check
