// Barrier by dissemination (Hensgen, Finkel and Manber, "Two algorithms for barrier
// synchronization", International Journal of Parallel Programming 17(1), 1988).
//
// In round k member r tells r + 2^k, and waits to be told by r - 2^k; then it knows, of twice as
// many members as before, that they have come.
//
//   steps ceil(log2 n);  bytes sent: 0 (ceil(log2 n) empty messages)
#include <memory>
#include <span>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/net/net_works.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {
namespace {

class NetBarrier final : public NetWork {
 public:
  explicit NetBarrier(std::shared_ptr<NetLinks> links) : NetWork(std::move(links)) {}

 private:
  Status begin() override { return start_round(); }
  Result<Progress> step() override {
    bool moved = false;
    while (distance_ < links().size()) {
      LIGHTCC_ASSIGN_OR_RETURN(const bool sent, send_.settle());
      LIGHTCC_ASSIGN_OR_RETURN(const bool received, recv_.settle());
      moved = moved || sent || received;
      if (!send_.idle() || !recv_.idle()) {
        return moved ? Progress::kMoved : Progress::kIdle;
      }
      distance_ *= 2;
      LIGHTCC_RETURN_IF_ERROR(start_round());
    }
    return Progress::kDone;
  }
  /// Posts the messages of the round, if there is one.
  Status start_round() {
    if (distance_ >= links().size()) {
      return {};
    }
    LIGHTCC_ASSIGN_OR_RETURN(SendChannel* const sender,
                             links().sender(links().neighbour(distance_)));
    LIGHTCC_ASSIGN_OR_RETURN(RecvChannel* const receiver,
                             links().receiver(links().neighbour(-distance_)));
    LIGHTCC_ASSIGN_OR_RETURN(const RequestId sent, sender->isend({}));
    LIGHTCC_ASSIGN_OR_RETURN(const RequestId awaited, receiver->irecv({}));
    send_ = SendQueue(sender);
    send_.note(sent);
    recv_ = RecvQueue(receiver);
    recv_.note(awaited);
    return {};
  }

  int distance_ = 1;
  SendQueue send_;
  RecvQueue recv_;
};

}  // namespace

std::unique_ptr<Work> make_net_barrier(std::shared_ptr<NetLinks> links) {
  return std::make_unique<NetBarrier>(std::move(links));
}

}  // namespace lightcc
