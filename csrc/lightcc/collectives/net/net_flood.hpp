// All-reduce of very small buckets: one hop.
//
// Every member sends its whole input (N bytes) to every other and combines all n inputs itself, in
// member order, as an owner of the direct exchange would: the same bits, for less waiting.
//
//   steps   1
//   bytes sent by each member   (n-1) N
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/bucket_view.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

/// Whether a bucket of `bytes` among `members` is small enough: what the extra bytes cost on the
/// wire stays below the hop that they save.
constexpr bool is_flood_sized(std::size_t bytes, std::size_t members) {
  constexpr std::size_t kMaxInput = std::size_t{16} << 10;
  constexpr std::size_t kMaxSent = std::size_t{64} << 10;
  return bytes <= kMaxInput && bytes * (members - 1) <= kMaxSent;
}

/// For at most kMaxDirectMembers members.
class NetFlood final : public NetWork {
 public:
  NetFlood(std::shared_ptr<NetLinks> links, BucketView bucket, const Reduction& reduction);

 private:
  Status begin() override;
  Result<Progress> step() override;
  void combine();
  std::byte* input_of(int member) const {
    return inputs_ + static_cast<std::size_t>(member) * slot_bytes_;
  }

  BucketView bucket_;
  Reduction reduction_;
  std::vector<SendQueue> sends_;
  std::vector<RecvQueue> recvs_;
  std::byte* inputs_ = nullptr;  ///< That of member m is at m * slot_bytes_.
  std::size_t slot_bytes_ = 0;
  bool combined_ = false;
};

}  // namespace lightcc
