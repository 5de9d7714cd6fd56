#include "lightcc/transport/channel/send_machine.hpp"

namespace lightcc {

Result<RequestId> SendMachine::isend(std::span<const std::byte> data) {
  if (queue_.is_over()) {
    return queue_.error();
  }
  const RequestId request = queue_.push({data, cut_.count(data.size())});
  on_post();
  if (queue_.is_over()) {
    return queue_.error();
  }
  return request;
}

Result<bool> SendMachine::test(RequestId request) {
  return queue_.test(request, "a send that was never posted");
}

void SendMachine::cancel() {
  fail(make_error(ErrorCode::kShutDown, "the channel to rank %u was cancelled", peer_));
  queue_.forget_done();
}

void SendMachine::fail(const Status& why) {
  close();
  queue_.fail(blame(why, peer_));
}

}  // namespace lightcc
