#!/usr/bin/env bash
# Builds deploy/Containerfile with buildah, on a machine that reaches packages but no images: the base
# is a fresh Debian 12 (debootstrap), and the machine's own pip fetches what pip in the build installs.
#
# Usage: tools/build_image.sh [REQUIREMENTS]    (torch.txt: a file of deploy/image)
#
# The image is localhost/lightcc in the storage IMAGE_HOME/storage (build/image), and its files are in
# IMAGE_HOME/files. MIRROR is debootstrap's; PYTHON has the pip. Needs root, and
# tools/install_system_packages.sh pods.
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=${1:-torch.txt}
home=${IMAGE_HOME:-$PWD/build/image}
python=${PYTHON:-python3}
base=localhost/debian:12
image=localhost/lightcc
mkdir -p "$home"
buildah=(buildah --root "$home/storage" --runroot "$home/run" --storage-driver vfs)
((EUID == 0)) || { echo "build_image: needs root, for debootstrap" >&2; exit 1; }

if ! "${buildah[@]}" images --quiet "$base" >/dev/null 2>&1; then
  echo "build_image: making $base"
  container=$("${buildah[@]}" from scratch)
  debootstrap --variant=minbase bookworm "$("${buildah[@]}" mount "$container")" \
    ${MIRROR:+"$MIRROR"} >"$home/debootstrap.log" 2>&1 ||
    { tail "$home/debootstrap.log" >&2; exit 1; }
  "${buildah[@]}" commit --quiet --rm "$container" "$base" >/dev/null
fi

echo "build_image: fetching what $requirements names"
"$python" -m pip download --quiet --disable-pip-version-check --only-binary=:all: \
  --python-version 3.11 --dest "$home/wheels" \
  --requirement deploy/image/build.txt --requirement "deploy/image/$requirements"
printf '[global]\nno-index = true\nfind-links = /media\ndisable-pip-version-check = true\n' \
  >"$home/pip.conf"

echo "build_image: building $image"
"${buildah[@]}" build --isolation chroot --network host --format oci \
  --file deploy/Containerfile --tag "$image" \
  --build-arg BASE="$base" --build-arg REQUIREMENTS="$requirements" \
  --build-arg JOBS="${JOBS:-$(nproc)}" \
  --secret id=pip,src="$home/pip.conf" --volume "$home/wheels:/media:ro" .

# What the tests start pods from, below a layer of each pod's own.
"${buildah[@]}" rm lightcc-files >/dev/null 2>&1 || true
"${buildah[@]}" from --pull-never --name lightcc-files "$image" >/dev/null
rm -rf "$home/files"
ln -s "$("${buildah[@]}" mount lightcc-files)" "$home/files"
"${buildah[@]}" rmi --prune >/dev/null
"${buildah[@]}" inspect --type image "$image" | "$python" -c 'import json, sys
json.dump(json.load(sys.stdin)["OCIv1"]["config"], sys.stdout)' >"$home/config.json"
echo "build_image: $image is there; its files are in $home/files"
