// Whether the ranks of a world can use NCCL: a function of what each says of itself, so that all
// come to the same answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"

#include "lightcc_cuda/nccl/functions.hpp"

namespace lightcc::cuda {

/// What a rank has.
struct NcclCard {
  std::string objection;  ///< "no NCCL, because ..."; empty: it has one, and a GPU.
  std::int32_t version = 0;
  std::int32_t device = 0;  ///< The GPU's number on that rank.
  std::string pci_bus_id;
  std::string uuid;     ///< UUID of the GPU; empty: not known.
  std::string host_id;  ///< NCCL_HOSTID: what NCCL takes for its host; empty: as NCCL finds it.
  NcclUniqueId id{};    ///< The one that rank 0 made.
};

Bytes encode_card(const NcclCard& card);
/// kPeerFailed: it does not parse.
Result<NcclCard> decode_card(const Bytes& bytes, int rank);

/// Why GPU memory is staged instead; empty: NCCL carries out what it can. `host_of` by rank.
/// kInvalidArgument: their versions differ, which NCCL does not allow.
Result<std::string> why_no_nccl(const std::vector<NcclCard>& cards,
                                const std::vector<int>& host_of);

}  // namespace lightcc::cuda
