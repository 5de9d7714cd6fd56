#include "lightcc_cuda/nccl/agreement.hpp"

#include <algorithm>
#include <span>

#include "lightcc_cuda/nccl/library.hpp"

namespace lightcc::cuda {
namespace {

constexpr std::size_t kMaxText = 4096;
/// The first NCCL that tells slices of a GPU apart: 2.30 compares UUIDs, others PCI addresses.
constexpr int kOldestNcclForSlices = 23000;

/// Why NCCL would refuse the GPUs of two ranks ("Duplicate GPU detected"), after their names.
std::string shared_gpu(const NcclCard& one, const NcclCard& other, bool on_one_host) {
  if (!one.host_id.empty() && !other.host_id.empty() && one.host_id != other.host_id) {
    return {};  // Two hosts, as NCCL sees it.
  }
  const bool has_uuids = !one.uuid.empty() && !other.uuid.empty();
  const bool at_one_address = on_one_host && one.pci_bus_id == other.pci_bus_id;
  if (has_uuids ? one.uuid == other.uuid : at_one_address) {
    return " have the same GPU, " + (has_uuids ? one.uuid + ' ' : std::string()) + "at " +
           one.pci_bus_id + ", and NCCL wants one for each rank (see CUDA_VISIBLE_DEVICES)";
  }
  if (at_one_address && one.version < kOldestNcclForSlices) {
    return " have slices (MIG) of one GPU, at " + one.pci_bus_id + ", which NCCL before " +
           nccl_version_text(kOldestNcclForSlices) + " takes for the same GPU; this is " +
           nccl_version_text(one.version);
  }
  return {};
}

}  // namespace

Bytes encode_card(const NcclCard& card) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.string(card.objection.substr(0, kMaxText));
  writer.number(card.version);
  writer.number(card.device);
  writer.string(card.pci_bus_id);
  writer.string(card.uuid);
  writer.string(card.host_id.substr(0, kMaxText));
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
  card.uuid = reader.string(kMaxText);
  card.host_id = reader.string(kMaxText);
  const auto id = reader.raw(card.id.bytes.size());
  if (!reader.finished()) {
    return Status(ErrorCode::kPeerFailed,
                  "rank " + std::to_string(rank) + " said of its NCCL what does not parse",
                  rank);
  }
  std::ranges::copy(std::as_bytes(id), std::as_writable_bytes(std::span(card.id.bytes)).begin());
  return card;
}

Result<std::string> why_no_nccl(const std::vector<NcclCard>& cards,
                                const std::vector<int>& host_of) {
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    if (!cards[rank].objection.empty()) {
      return "rank " + std::to_string(rank) + ": " + cards[rank].objection;
    }
    if (cards[rank].version != cards.front().version) {
      return make_error(ErrorCode::kInvalidArgument,
                        "rank 0 has NCCL %s, but rank %zu has NCCL %s; install the same version "
                        "for all ranks, or set LIGHT_GPU_OPERATIONS=host",
                        nccl_version_text(cards.front().version).c_str(),
                        rank,
                        nccl_version_text(cards[rank].version).c_str());
    }
    for (std::size_t other = 0; other < rank; ++other) {
      const std::string shared =
          shared_gpu(cards[other], cards[rank], host_of[other] == host_of[rank]);
      if (!shared.empty()) {
        return "ranks " + std::to_string(other) + " and " + std::to_string(rank) + shared;
      }
    }
  }
  return std::string();
}

}  // namespace lightcc::cuda
