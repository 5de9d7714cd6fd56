// All-to-all of blocks of any sizes, pair by pair.
//
// In step k = 1 .. n-1 member r sends to r+k and receives from r-k, so every member is the target
// of one other in each step. kSteps steps run at once: enough to hide latency, few enough that no
// member is flooded by all others. Sends and receives move on independently; the smallest
// unfinished step is always among those that run on both of its ends, so nothing can lock.
//
//   steps n-1, kSteps at once;  bytes sent: what goes to other members
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/net/net_stream.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

class NetAlltoall final : public NetWork {
 public:
  NetAlltoall(std::shared_ptr<NetLinks> links,
              const std::byte* in,
              std::vector<std::size_t> send_bytes,
              std::byte* out,
              std::vector<std::size_t> recv_bytes);

 private:
  static constexpr std::size_t kSteps = 4;

  Status begin() override;
  Result<Progress> step() override;

  const std::byte* in_;
  std::vector<std::size_t> send_bytes_;
  std::byte* out_;
  std::vector<std::size_t> recv_bytes_;
  std::vector<NetSendStream> sends_;  ///< Step k at k-1.
  std::vector<NetRecvStream> recvs_;
  std::size_t sends_finished_ = 0;  ///< Steps at the front that are complete.
  std::size_t recvs_finished_ = 0;
};

}  // namespace lightcc
