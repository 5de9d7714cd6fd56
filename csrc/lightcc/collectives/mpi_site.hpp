// Where the ranks of a world are in MPI.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lightcc {

struct MpiSite {
  std::string library;      ///< Path, or a name that the process has loaded.
  std::uintptr_t comm = 0;  ///< A communicator of all ranks of the world, perhaps of more.
  std::vector<int> ranks;   ///< In `comm`, by rank of the world.
};

}  // namespace lightcc
