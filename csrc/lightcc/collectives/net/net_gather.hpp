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
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/net/net_stream.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

class NetGatherDirect final : public NetWork {
 public:
  NetGatherDirect(std::shared_ptr<NetLinks> links,
                  const std::byte* in,
                  std::byte* out,
                  std::vector<std::size_t> bytes);

 private:
  Status begin() override;
  Result<Progress> step() override;

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
                std::vector<std::size_t> bytes);

 private:
  /// A position in the sequence of pieces of the blocks of r, r-1, r-2, ...
  struct Cursor {
    std::size_t block = 0;  ///< Places before the first member.
    std::size_t piece = 0;
  };

  Status begin() override;
  Result<Progress> step() override;
  Result<bool> post_send();
  Result<bool> post_recv();
  std::size_t member_at(const Cursor& cursor, std::size_t first) const;
  PieceCut cut_of(std::size_t member) const;
  /// Moves `cursor`, which starts at member `first`, over blocks that are used up; false at the
  /// end.
  bool settle_cursor(Cursor& cursor, std::size_t first) const;

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
  NetGatherBucket(BucketView bucket, ElementRange own);

  // What an all-gather is to read and write, which run() then hands over.
  const std::byte* in() const { return in_; }
  std::byte* out() const { return out_; }
  void run(std::unique_ptr<Work> gather) { gather_ = std::move(gather); }

  Result<Progress> advance() override;

 private:
  BucketView bucket_;
  std::vector<std::byte> packed_;   ///< The own part; empty where it lies together.
  std::vector<std::byte> results_;  ///< All parts, likewise.
  const std::byte* in_;
  std::byte* out_;
  std::unique_ptr<Work> gather_;
};

}  // namespace lightcc
