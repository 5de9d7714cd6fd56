// Barrier by dissemination (Hensgen, Finkel and Manber, "Two algorithms for barrier
// synchronization", International Journal of Parallel Programming 17(1), 1988).
//
// In round k member r tells r + 2^k, and waits to be told by r - 2^k; then it knows, of twice as
// many members as before, that they have come.
//
//   steps ceil(log2 n);  bytes sent: 0 (ceil(log2 n) empty messages)
#pragma once

#include <memory>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/work.hpp"

namespace lightcc {

class NetBarrier final : public NetWork {
 public:
  explicit NetBarrier(std::shared_ptr<NetLinks> links) : NetWork(std::move(links)) {}

 private:
  Status begin() override { return start_round(); }
  Result<Progress> step() override;
  /// Posts the messages of the round, if there is one.
  Status start_round();

  int distance_ = 1;
  SendQueue send_;
  RecvQueue recv_;
};

}  // namespace lightcc
