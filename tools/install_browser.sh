#!/usr/bin/env bash
# What the browser tests need and pip does not bring: Debian's Chromium, and axe-core, which checks accessibility.
#
#     tools/install_browser.sh DIR        axe.min.js goes to DIR; Chromium is installed by apt where it is absent
set -euo pipefail
folder=${1:?where axe.min.js goes}
mkdir -p "$folder"

if ! command -v chromium >/dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null
fi
if [ ! -s "$folder/axe.min.js" ]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  (cd "$scratch" && npm pack --silent axe-core@4.11.0 >/dev/null && tar -xzf axe-core-*.tgz package/axe.min.js)
  cp "$scratch/package/axe.min.js" "$folder/axe.min.js"
fi
