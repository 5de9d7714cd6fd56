// Both all-gathers. Sends of the ring are the own pieces followed by what was received, in the
// order in which it was received: send k >= P forwards receive k - P, where P counts the own
// pieces. (Essay: net_gather.hpp.)
#include "lightcc/collectives/net/net_gather.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/net/net_stream.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {
namespace {

void copy_own(const std::byte* in, std::byte* out, std::size_t bytes) {
  if (bytes != 0 && in != out) {
    std::memcpy(out, in, bytes);
  }
}

}  // namespace

NetGatherDirect::NetGatherDirect(std::shared_ptr<NetLinks> links,
                                 const std::byte* in,
                                 std::byte* out,
                                 std::vector<std::size_t> bytes)
    : NetWork(std::move(links)), in_(in), out_(out), bytes_(std::move(bytes)) {}

Status NetGatherDirect::begin() {
  std::vector<std::size_t> offsets;
  std::size_t total = 0;
  for (const std::size_t block : bytes_) {
    offsets.push_back(total);
    total += block;
  }
  const auto own = static_cast<std::size_t>(links().rank());
  const std::size_t piece = links().options().chunk_bytes;
  for (int distance = 1; distance < links().size(); ++distance) {
    const int to = links().neighbour(distance);
    const int from = links().neighbour(-distance);
    const auto source = static_cast<std::size_t>(from);
    LIGHTCC_ASSIGN_OR_RETURN(SendChannel* const sender, links().sender(to));
    LIGHTCC_ASSIGN_OR_RETURN(RecvChannel* const receiver, links().receiver(from));
    sends_.emplace_back(sender, in_, PieceCut{.bytes = bytes_[own], .piece_bytes = piece});
    recvs_.emplace_back(
        receiver, out_ + offsets[source], PieceCut{.bytes = bytes_[source], .piece_bytes = piece});
  }
  copy_own(in_, out_ + offsets[own], bytes_[own]);
  return {};
}

Result<Progress> NetGatherDirect::step() {
  bool moved = false;
  bool finished = true;
  for (NetSendStream& stream : sends_) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool sent, stream.advance());
    moved = moved || sent;
    finished = finished && stream.finished();
  }
  for (NetRecvStream& stream : recvs_) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool received, stream.advance());
    moved = moved || received;
    finished = finished && stream.finished();
  }
  if (finished) {
    return Progress::kDone;
  }
  return moved ? Progress::kMoved : Progress::kIdle;
}

NetGatherRing::NetGatherRing(std::shared_ptr<NetLinks> links,
                             const std::byte* in,
                             std::byte* out,
                             std::vector<std::size_t> bytes)
    : NetWork(std::move(links)), in_(in), out_(out), bytes_(std::move(bytes)) {}

Status NetGatherRing::begin() {
  std::size_t total = 0;
  for (const std::size_t block : bytes_) {
    offsets_.push_back(total);
    total += block;
  }
  rank_ = static_cast<std::size_t>(links().rank());
  own_pieces_ = cut_of(rank_).pieces();
  copy_own(in_, out_ + offsets_[rank_], bytes_[rank_]);
  LIGHTCC_ASSIGN_OR_RETURN(SendChannel* const sender, links().sender(links().neighbour(1)));
  LIGHTCC_ASSIGN_OR_RETURN(RecvChannel* const receiver, links().receiver(links().neighbour(-1)));
  sends_ = SendQueue(sender);
  recvs_ = RecvQueue(receiver);
  return {};
}

std::size_t NetGatherRing::member_at(const Cursor& cursor, std::size_t first) const {
  return (first + bytes_.size() - cursor.block) % bytes_.size();
}

PieceCut NetGatherRing::cut_of(std::size_t member) const {
  // A block is forwarded piece by piece, so even one block should be several.
  constexpr std::size_t kMinPieceBytes = std::size_t{8} << 10;
  const std::size_t wanted = std::max(kMinPieceBytes, bytes_[member] / 4);
  return {.bytes = bytes_[member], .piece_bytes = std::min(links().options().chunk_bytes, wanted)};
}

bool NetGatherRing::settle_cursor(Cursor& cursor, std::size_t first) const {
  while (cursor.block + 1 < bytes_.size()) {
    if (cursor.piece < cut_of(member_at(cursor, first)).pieces()) {
      return true;
    }
    ++cursor.block;
    cursor.piece = 0;
  }
  return false;
}

Result<bool> NetGatherRing::post_send() {
  if (!settle_cursor(next_send_, rank_) || sends_.full()) {
    return false;
  }
  const std::size_t position = sends_.posted();
  if (position >= own_pieces_ && recvs_.done() <= position - own_pieces_) {
    return false;
  }
  const std::size_t member = member_at(next_send_, rank_);
  const PieceCut cut = cut_of(member);
  const std::byte* const block = member == rank_ ? in_ : out_ + offsets_[member];
  LIGHTCC_ASSIGN_OR_RETURN(const RequestId request,
                           sends_.channel().isend({block + cut.offset(next_send_.piece),
                                                   cut.size_bytes(next_send_.piece)}));
  sends_.note(request);
  ++next_send_.piece;
  return true;
}

Result<bool> NetGatherRing::post_recv() {
  const std::size_t before = (rank_ + bytes_.size() - 1) % bytes_.size();
  if (!settle_cursor(next_recv_, before) || recvs_.full()) {
    return false;
  }
  const std::size_t member = member_at(next_recv_, before);
  const PieceCut cut = cut_of(member);
  LIGHTCC_ASSIGN_OR_RETURN(
      const RequestId request,
      recvs_.channel().irecv({out_ + offsets_[member] + cut.offset(next_recv_.piece),
                              cut.size_bytes(next_recv_.piece)}));
  recvs_.note(request);
  ++next_recv_.piece;
  return true;
}

Result<Progress> NetGatherRing::step() {
  LIGHTCC_ASSIGN_OR_RETURN(const bool received, recvs_.settle());
  LIGHTCC_ASSIGN_OR_RETURN(const bool sent, sends_.settle());
  bool moved = received || sent;
  for (bool again = true; again;) {
    LIGHTCC_ASSIGN_OR_RETURN(const bool expecting, post_recv());
    LIGHTCC_ASSIGN_OR_RETURN(const bool sending, post_send());
    again = expecting || sending;
    moved = moved || again;
  }
  const std::size_t before = (rank_ + bytes_.size() - 1) % bytes_.size();
  if (!settle_cursor(next_send_, rank_) && !settle_cursor(next_recv_, before) && sends_.idle() &&
      recvs_.idle()) {
    return Progress::kDone;
  }
  return moved ? Progress::kMoved : Progress::kIdle;
}

NetGatherBucket::NetGatherBucket(BucketView bucket, ElementRange own)
    : bucket_(std::move(bucket)),
      in_(bucket_.contiguous_in(own)),
      out_(bucket_.contiguous_out({0, bucket_.total_elements()})) {
  if (in_ == nullptr) {
    packed_.resize(own.count * bucket_.element_bytes());
    bucket_.pack(own, packed_.data());
    in_ = packed_.data();
  }
  if (out_ == nullptr) {
    results_.resize(bucket_.total_elements() * bucket_.element_bytes());
    out_ = results_.data();
  }
}

Result<Progress> NetGatherBucket::advance() {
  LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, gather_->advance());
  if (progress == Progress::kDone && !results_.empty()) {
    bucket_.unpack({0, bucket_.total_elements()}, 0, results_);
  }
  return progress;
}

}  // namespace lightcc
