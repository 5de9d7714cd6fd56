#include "lightcc/transport/plugin/plugin_comm.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "lightcc/base/status.hpp"
#include "lightcc/transport/plugin/aligned_parts.hpp"
#include "lightcc/transport/plugin/plugin_library.hpp"
#include "lightcc/transport/plugin/plugin_table.hpp"
#include "lightcc/transport/transport.hpp"

namespace lightcc {
namespace {

bool covers(std::span<const std::byte> whole, std::span<const std::byte> part) {
  return whole.data() <= part.data() && part.data() + part.size() <= whole.data() + whole.size();
}

}  // namespace

PluginComm::PluginComm(std::shared_ptr<PluginContext> context,
                       void* comm,
                       Kind kind,
                       std::uint32_t peer)
    : context_(std::move(context)),
      table_(context_->table()),
      comm_(comm),
      kind_(kind),
      peer_(peer) {}

PluginComm::~PluginComm() {
  // The order of NCCL's own teardown. What these say is of no use to anybody.
  for (const Registration& one : registrations_) {
    (void)table_.dereg_mr(comm_, one.mr);
  }
  (void)(kind_ == Kind::kSend ? table_.close_send(comm_) : table_.close_recv(comm_));
}

Status PluginComm::failed(const char* call, abi::Result result) const {
  // NCCL's own sockets say "system error" of a connection that broke.
  const bool peer_is_gone = result == abi::Result::kRemoteError ||
                            result == abi::Result::kSystemError ||
                            (result == abi::Result::kInvalidUsage && kind_ == Kind::kRecv);
  const Status why = plugin_error(ErrorCode::kSystem, table_, call, result);
  std::string text = kind_ == Kind::kSend ? "sending to rank " : "receiving from rank ";
  text += std::to_string(peer_) + ": " + why.message();
  if (result == abi::Result::kInvalidUsage && kind_ == Kind::kRecv) {
    text += "; it sent a longer message than was expected";
  }
  return {peer_is_gone ? ErrorCode::kPeerFailed : ErrorCode::kSystem,
          std::move(text),
          static_cast<int>(peer_)};
}

Result<PluginComm::Registration*> PluginComm::registration_of(std::span<std::byte> piece,
                                                              std::span<std::byte> whole) {
  const auto found = std::ranges::find_if(registrations_, [&](const Registration& one) {  //
    return covers(one.memory, piece);
  });
  if (found != registrations_.end()) {
    return &*found;
  }
  Registration made{.memory = whole};
  const auto result = table_.reg_mr(comm_, whole.data(), whole.size(), &made.mr);
  if (result != abi::Result::kSuccess) {
    return failed("regMr", result);
  }
  registrations_.push_back(made);
  return &registrations_.back();
}

void PluginComm::stop_using(void* mr) {
  for (Registration& one : registrations_) {
    if (one.mr == mr && one.uses > 0) {
      --one.uses;
      return;
    }
  }
}

Status PluginComm::pin(std::span<std::byte> memory) {
  auto registration = registration_of(memory, memory);
  if (registration.ok()) {
    ++(*registration)->uses;  // Never given back.
  }
  return registration.status();
}

void PluginComm::forget_idle() {
  std::erase_if(registrations_, [&](const Registration& one) {
    if (one.uses == 0) {
      (void)table_.dereg_mr(comm_, one.mr);
    }
    return one.uses == 0;
  });
}

// hot
Result<bool> PluginComm::post(std::span<std::byte> piece,
                              std::span<std::byte> whole,
                              std::uint64_t cookie) {
  if (piece.empty()) {
    piece = small_memory().first(0);
    whole = small_memory();
  }
  LIGHTCC_ASSIGN_OR_RETURN(Registration* const registration, registration_of(piece, whole));
  Request made{.mr = registration->mr, .cookie = cookie, .bytes = piece.size()};
  const bool is_send = kind_ == Kind::kSend;
  const auto result = is_send
                          ? table_.isend(comm_, piece.data(), piece.size(), made.mr, &made.request)
                          : table_.irecv(comm_, piece.data(), piece.size(), made.mr, &made.request);
  if (result != abi::Result::kSuccess) {
    return failed(is_send ? "isend" : "irecv", result);
  }
  if (made.request == nullptr) {
    return false;
  }
  ++registration->uses;
  requests_[(first_ + count_) % kWindow] = made;
  ++count_;
  return true;
}

Result<bool> PluginComm::post_to_sink(std::size_t bytes,
                                      std::size_t offset,
                                      const FragmentSink& sink,
                                      std::uint64_t cookie) {
  const std::size_t position = (first_ + count_) % kWindow;
  sinks_[position] = {.sink = sink, .offset = offset};
  Request made{.cookie = cookie, .bytes = bytes};
  const auto result = static_cast<abi::Result>(
      table_.irecv_take()(comm_, bytes, take, &sinks_[position], &made.request));
  if (result != abi::Result::kSuccess) {
    return failed("irecv", result);
  }
  if (made.request == nullptr) {
    return false;
  }
  requests_[position] = made;
  ++count_;
  return true;
}

// hot: called by the plugin.
void PluginComm::take(void* context, std::size_t offset, const void* data, std::size_t bytes) {
  const auto& [sink, message_offset] = *static_cast<const SinkAt*>(context);
  const std::span all(static_cast<const std::byte*>(data), bytes);
  for_each_aligned_part(all, [&](std::size_t at, std::span<const std::byte> part) {
    sink.take(sink.context, {.offset = message_offset + offset + at, .bytes = part});
  });
}

// hot
Result<bool> PluginComm::settle_oldest(Done* done) {
  const Request& oldest = requests_[first_];
  bool is_done = false;
  std::size_t bytes = 0;
  const auto result = table_.test(oldest.request, &is_done, &bytes);
  if (result != abi::Result::kSuccess) {
    return failed("test", result);
  }
  if (!is_done) {
    return false;
  }
  *done = {.cookie = oldest.cookie, .bytes = bytes, .expected = oldest.bytes};
  is_at_rest_ = false;
  stop_using(oldest.mr);
  first_ = (first_ + 1) % kWindow;
  --count_;
  return true;
}

void PluginComm::rest() {
  if (!is_at_rest_ && table_.progress() != nullptr) {
    (void)table_.progress()(comm_);  // What it finds wrong, the next request says.
  }
  is_at_rest_ = true;
}

}  // namespace lightcc
