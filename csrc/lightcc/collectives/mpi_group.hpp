// Collectives that MPI carries out, for sites where it is tuned for the fabric.
//
// Every operation is one or more of MPI's non-blocking collectives (mpi_work.hpp says why in
// rounds), which advance() tests. MPI chooses algorithm and order of reduction, so floating-point
// sums may differ from those of other groups in the last bits, and between runs of another shape.
#pragma once

#include <memory>

#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/collectives/mpi_comms.hpp"

namespace lightcc {

/// The chunk size must be the same on all members.
struct MpiGroupOptions {
  std::size_t chunk_bytes = std::size_t{8} << 20;  ///< Of one round of an operation.
  SimdLevel simd = SimdLevel::kPlain;
};

/// `comm` is made, has `size` members, and is of this group alone; `rank` is this one's index.
///
/// A Work that fails, or is dropped before its end, ends the group, as in a NetGroup. What MPI
/// still uses then stays allocated.
std::unique_ptr<Group> make_mpi_group(std::shared_ptr<MpiComm> comm,
                                      int rank,
                                      int size,
                                      const MpiGroupOptions& options);

}  // namespace lightcc
