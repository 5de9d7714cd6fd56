// What both kinds of comm do alike; included by the file of each.
#pragma once

#include <cstring>

#include "comms.hpp"
#include "plugin/guard.hpp"
#include "plugin/host_device.hpp"

namespace reftcp {

struct Registration {
  void* data;
  std::size_t bytes;
};

template <typename Base>
Result TcpComm<Base>::reg_mr(void* data, std::size_t bytes, int type, void** mr) {
  const Result result = harp::plugin::check_host_memory(type);
  if (result != Result::kSuccess) {
    return result;
  }
  *mr = new Registration{data, bytes};
  return Result::kSuccess;
}

template <typename Base>
Result TcpComm<Base>::dereg_mr(void* mr) {
  delete static_cast<Registration*>(mr);
  return Result::kSuccess;
}

template <typename Base>
Result TcpComm<Base>::fail(Result result, const char* why, int error) {
  if (broken_ == Result::kSuccess) {
    broken_ = result;
    std::array<char, 128> text{};
    harp::plugin::log(harp::abi::LogLevel::kWarn,
                      this->kind() == harp::plugin::CommKind::kSend ? "send" : "receive",
                      "%s%s%s",
                      why,
                      error != 0 ? ": " : "",
                      error != 0 ? ::strerror_r(error, text.data(), text.size()) : "");
  }
  return broken_;
}

}  // namespace reftcp
