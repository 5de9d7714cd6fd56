// All-gather of blocks of any sizes B_0 .. B_{n-1} (N bytes in all).
//
// Up to 16 members: everyone sends its block to everyone, at once.
//   steps 1;  bytes sent by member r: (n-1) B_r
// More: around a ring, as a stream. Member r sends its own block to r+1, and after it everything
// that comes from r-1 except, at the end, the block of r+1. A piece leaves as soon as it is there,
// so the ring fills once and then every link is busy.
//   steps n-1 blocks in a row;  bytes sent by member r: N - B_{r+1}
// Blocks land where they belong and are forwarded from there: no staging. Only a bucket whose
// tensors do not lie together is packed and unpacked.
//
// Sends of the ring are the own pieces followed by what was received, in the order in which it was
// received: send k >= P forwards receive k - P, where P counts the own pieces.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/net/net_stream.hpp"
#include "lightcc/collectives/net/net_works.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {
namespace {

void copy_own(const std::byte* in, std::byte* out, std::size_t bytes) {
  if (bytes != 0 && in != out) {
    std::memcpy(out, in, bytes);
  }
}

class NetGatherDirect final : public NetWork {
 public:
  NetGatherDirect(std::shared_ptr<NetLinks> links,
                  const std::byte* in,
                  std::byte* out,
                  std::vector<std::size_t> bytes)
      : NetWork(std::move(links)), in_(in), out_(out), bytes_(std::move(bytes)) {}

 private:
  Status begin() override {
    const std::vector<std::size_t> offsets = starts_of(bytes_);
    const auto own = static_cast<std::size_t>(links().rank());
    const std::size_t piece = links().options().chunk_bytes;
    for (int distance = 1; distance < links().size(); ++distance) {
      const int to = links().neighbour(distance);
      const int from = links().neighbour(-distance);
      const auto source = static_cast<std::size_t>(from);
      LIGHTCC_ASSIGN_OR_RETURN(SendChannel* const sender, links().sender(to));
      LIGHTCC_ASSIGN_OR_RETURN(RecvChannel* const receiver, links().receiver(from));
      sends_.emplace_back(sender, in_, PieceCut{.bytes = bytes_[own], .piece_bytes = piece});
      recvs_.emplace_back(receiver,
                          out_ + offsets[source],
                          PieceCut{.bytes = bytes_[source], .piece_bytes = piece});
    }
    copy_own(in_, out_ + offsets[own], bytes_[own]);
    return {};
  }
  Result<Progress> step() override {
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

  const std::byte* in_;
  std::byte* out_;
  std::vector<std::size_t> bytes_;
  std::vector<NetSendStream> sends_;
  std::vector<NetRecvStream> recvs_;
};

class NetGatherRing final : public NetWork {
 public:
  NetGatherRing(std::shared_ptr<NetLinks> links,
                const std::byte* in,
                std::byte* out,
                std::vector<std::size_t> bytes)
      : NetWork(std::move(links)), in_(in), out_(out), bytes_(std::move(bytes)) {}

 private:
  /// A position in the sequence of pieces of the blocks of r, r-1, r-2, ...
  struct Cursor {
    std::size_t block = 0;  ///< Places before the first member.
    std::size_t piece = 0;
  };

  Status begin() override {
    offsets_ = starts_of(bytes_);
    rank_ = static_cast<std::size_t>(links().rank());
    own_pieces_ = cut_of(rank_).pieces();
    copy_own(in_, out_ + offsets_[rank_], bytes_[rank_]);
    LIGHTCC_ASSIGN_OR_RETURN(SendChannel* const sender, links().sender(links().neighbour(1)));
    LIGHTCC_ASSIGN_OR_RETURN(RecvChannel* const receiver, links().receiver(links().neighbour(-1)));
    sends_ = SendQueue(sender);
    recvs_ = RecvQueue(receiver);
    return {};
  }
  Result<Progress> step() override {
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
  Result<bool> post_send() {
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
  Result<bool> post_recv() {
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
  std::size_t member_at(const Cursor& cursor, std::size_t first) const {
    return (first + bytes_.size() - cursor.block) % bytes_.size();
  }
  PieceCut cut_of(std::size_t member) const {
    // A block is forwarded piece by piece, so even one block should be several.
    constexpr std::size_t kMinPieceBytes = std::size_t{8} << 10;
    const std::size_t wanted = std::max(kMinPieceBytes, bytes_[member] / 4);
    return {.bytes = bytes_[member],
            .piece_bytes = std::min(links().options().chunk_bytes, wanted)};
  }
  /// Moves `cursor`, which starts at member `first`, over blocks that are used up; false at the
  /// end.
  bool settle_cursor(Cursor& cursor, std::size_t first) const {
    while (cursor.block + 1 < bytes_.size()) {
      if (cursor.piece < cut_of(member_at(cursor, first)).pieces()) {
        return true;
      }
      ++cursor.block;
      cursor.piece = 0;
    }
    return false;
  }

  const std::byte* in_;
  std::byte* out_;
  std::vector<std::size_t> bytes_;
  std::vector<std::size_t> offsets_;
  std::size_t rank_ = 0;
  std::size_t own_pieces_ = 0;
  SendQueue sends_;
  RecvQueue recvs_;
  Cursor next_send_;  ///< From member r on.
  Cursor next_recv_;  ///< From member r-1 on.
};

/// From and to the tensors of a bucket, through memory of its own where they do not lie together.
class NetGatherBucket final : public Work {
 public:
  /// This member contributes `own` of the bucket.
  NetGatherBucket(BucketView bucket, ElementRange own)
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

  // What an all-gather is to read and write, which run() then hands over.
  const std::byte* in() const { return in_; }
  std::byte* out() const { return out_; }
  void run(std::unique_ptr<Work> gather) { gather_ = std::move(gather); }

  Result<Progress> advance() override {
    LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, gather_->advance());
    if (progress == Progress::kDone && !results_.empty()) {
      bucket_.unpack({0, bucket_.total_elements()}, 0, results_);
    }
    return progress;
  }

 private:
  BucketView bucket_;
  std::vector<std::byte> packed_;   ///< The own part; empty where it lies together.
  std::vector<std::byte> results_;  ///< All parts, likewise.
  const std::byte* in_;
  std::byte* out_;
  std::unique_ptr<Work> gather_;
};

}  // namespace

std::unique_ptr<Work> make_net_gather_direct(std::shared_ptr<NetLinks> links,
                                             const std::byte* in,
                                             std::byte* out,
                                             std::vector<std::size_t> bytes) {
  return std::make_unique<NetGatherDirect>(std::move(links), in, out, std::move(bytes));
}

std::unique_ptr<Work> make_net_gather_ring(std::shared_ptr<NetLinks> links,
                                           const std::byte* in,
                                           std::byte* out,
                                           std::vector<std::size_t> bytes) {
  return std::make_unique<NetGatherRing>(std::move(links), in, out, std::move(bytes));
}

std::unique_ptr<Work> make_net_gather_bucket(BucketView bucket,
                                             ElementRange own,
                                             const StartGather& start) {
  auto work = std::make_unique<NetGatherBucket>(std::move(bucket), own);
  work->run(start(work->in(), work->out()));
  return work;
}

}  // namespace lightcc
