// One round after another. (Essay: net_barrier.hpp.)
#include "lightcc/collectives/net/net_barrier.hpp"

#include <span>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/net/net_links.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {

Status NetBarrier::start_round() {
  if (distance_ >= links().size()) {
    return {};
  }
  LIGHTCC_ASSIGN_OR_RETURN(SendChannel* const sender, links().sender(links().neighbour(distance_)));
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

Result<Progress> NetBarrier::step() {
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

}  // namespace lightcc
