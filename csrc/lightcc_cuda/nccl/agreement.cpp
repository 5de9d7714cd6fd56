#include "lightcc_cuda/nccl/agreement.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "lightcc_cuda/nccl/library.hpp"

namespace lightcc::cuda {
namespace {

constexpr std::size_t kMaxText = 4096;

}  // namespace

Bytes encode_card(const NcclCard& card) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.string(card.objection.substr(0, kMaxText));
  writer.number(card.version);
  writer.number(card.device);
  writer.string(card.pci_bus_id);
  writer.raw(std::as_bytes(std::span(card.id.bytes)));
  return bytes;
}

Result<NcclCard> decode_card(const Bytes& bytes, int rank) {
  ByteReader reader(bytes);
  NcclCard card;
  card.objection = reader.string(kMaxText);
  card.version = reader.number<std::int32_t>();
  card.device = reader.number<std::int32_t>();
  card.pci_bus_id = reader.string(kMaxText);
  const auto id = reader.raw(card.id.bytes.size());
  if (!reader.finished()) {
    return Status(ErrorCode::kPeerFailed,
                  "rank " + std::to_string(rank) + " said of its NCCL what does not parse",
                  rank);
  }
  std::ranges::copy(std::as_bytes(id), std::as_writable_bytes(std::span(card.id.bytes)).begin());
  return card;
}

Result<std::string> objection_to_nccl(const std::vector<NcclCard>& cards,
                                      const std::vector<int>& host_of) {
  std::map<std::pair<int, std::string>, std::size_t> owners;  // Of GPUs, by host.
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    if (!cards[rank].objection.empty()) {
      return "rank " + std::to_string(rank) + ": " + cards[rank].objection;
    }
    if (cards[rank].version != cards.front().version) {
      return make_error(ErrorCode::kInvalidArgument,
                        "rank 0 has NCCL %s, but rank %zu has NCCL %s; install the same version "
                        "for all ranks, or leave HOROVOD_GPU_OPERATIONS unset",
                        nccl_version_text(cards.front().version).c_str(),
                        rank,
                        nccl_version_text(cards[rank].version).c_str());
    }
    const auto [owner, is_first] =
        owners.emplace(std::pair(host_of[rank], cards[rank].pci_bus_id), rank);
    if (!is_first) {
      return "ranks " + std::to_string(owner->second) + " and " + std::to_string(rank) +
             " have the same GPU, at " + cards[rank].pci_bus_id +
             ", and NCCL wants one for each rank (see CUDA_VISIBLE_DEVICES)";
    }
  }
  return std::string();
}

}  // namespace lightcc::cuda
