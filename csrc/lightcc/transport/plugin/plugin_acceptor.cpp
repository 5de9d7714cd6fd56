#include "lightcc/transport/plugin/plugin_acceptor.hpp"

#include <algorithm>
#include <utility>

namespace lightcc {
namespace {

// Taken from the plugin by one pump().
constexpr int kMaxAtOnce = 16;

// A newcomer is given so long before it makes room for others.
constexpr Duration kGraceBeforeEviction = std::chrono::milliseconds(200);

constexpr std::uint32_t kNobody = 0xffffffff;

}  // namespace

Result<std::unique_ptr<PluginAcceptor>> PluginAcceptor::listen(
    std::shared_ptr<PluginLoop> loop,
    const PluginAcceptorOptions& listening,
    const ChannelOptions& options) {
  auto acceptor = std::make_unique<PluginAcceptor>(std::move(loop), listening, options);
  PluginTable& table = listening.context->table();
  const auto result = table.listen(listening.context->get(),
                                   listening.device,
                                   acceptor->handle_.data(),
                                   &acceptor->listen_comm_);
  if (result != abi::Result::kSuccess || acceptor->listen_comm_ == nullptr) {
    acceptor->listen_comm_ = nullptr;
    return plugin_error(ErrorCode::kSystem, table, "listen", result);
  }
  return acceptor;
}

PluginAcceptor::PluginAcceptor(std::shared_ptr<PluginLoop> loop,
                               PluginAcceptorOptions listening,
                               ChannelOptions options)
    : loop_(std::move(loop)),
      listening_(std::move(listening)),
      options_(std::move(options)),
      directory_(options_.max_parked) {
  loop_->join(*this);
}

PluginAcceptor::~PluginAcceptor() {
  loop_->leave(*this);
  if (listen_comm_ != nullptr) {
    (void)listening_.context->table().close_listen(listen_comm_);
  }
}

Status PluginAcceptor::take_error() {
  return std::exchange(error_, Status());
}

bool PluginAcceptor::is_active() const {
  return listen_comm_ != nullptr &&
         directory_.any_channel([](const auto& channel) { return channel.waits_for_sender(); });
}

bool PluginAcceptor::pump() {
  bool moved = false;
  for (int i = 0; i < kMaxAtOnce; ++i) {
    const bool is_full = newcomers_.size() >= listening_.max_unauthenticated;
    if (is_full && attended() - newcomers_.front().since < kGraceBeforeEviction) {
      break;
    }
    if (!accept_newcomer()) {
      break;
    }
    if (is_full) {
      newcomers_.pop_front();
    }
    moved = true;
  }
  for (auto newcomer = newcomers_.begin(); newcomer != newcomers_.end();) {
    const bool has_hello = take_hello(*newcomer);
    moved = moved || has_hello;
    newcomer = has_hello ? newcomers_.erase(newcomer) : std::next(newcomer);
  }
  directory_.drop_parked(
      [&](TimePoint since) { return attended() - since > options_.park_timeout; });
  return moved;
}

bool PluginAcceptor::accept_newcomer() {
  void* comm = nullptr;
  PluginTable& table = listening_.context->table();
  const auto result = table.accept(listen_comm_, &comm);
  if (result != abi::Result::kSuccess) {
    // A listener that has failed once is of no use, as in NCCL.
    error_ = plugin_error(ErrorCode::kSystem, table, "accept", result);
    (void)table.close_listen(std::exchange(listen_comm_, nullptr));
    return false;
  }
  if (comm == nullptr) {
    return false;
  }
  newcomers_.push_back({.comm = std::make_unique<PluginComm>(
                            listening_.context, comm, PluginComm::Kind::kRecv, kNobody),
                        .since = attended()});
  return true;
}

/// True when the newcomer is dealt with: admitted, parked or refused.
bool PluginAcceptor::take_hello(Newcomer& newcomer) {
  const auto memory = newcomer.comm->small_memory();
  if (!newcomer.is_asked) {
    const auto posted = newcomer.comm->post(memory.first<kPluginHelloBytes>(), memory, 0);
    if (!posted.ok()) {
      return true;
    }
    newcomer.is_asked = *posted;
  }
  if (newcomer.is_asked) {
    PluginComm::Done done;
    const auto settled = newcomer.comm->settle_oldest(&done);
    if (!settled.ok() || (*settled && done.bytes != kPluginHelloBytes)) {
      return true;
    }
    if (*settled) {
      admit(newcomer);
      return true;
    }
  }
  return attended() - newcomer.since > listening_.hello_timeout;
}

void PluginAcceptor::admit(Newcomer& newcomer) {
  PluginHelloBytes bytes{};
  std::ranges::copy(newcomer.comm->small_memory().first<kPluginHelloBytes>(), bytes.begin());
  const auto hello = decode_plugin_hello(bytes, options_.secret, listening_.nonce);
  if (!hello.ok() || hello->world_id != options_.world_id ||
      hello->piece_bytes > listening_.piece_bytes) {
    return;
  }
  directory_.admit(std::move(newcomer.comm), *hello, attended());
}

Result<std::unique_ptr<RecvChannel>> PluginAcceptor::accept(const ChannelId& id) {
  const bool can_receive_to_sink = listening_.context->table().irecv_take() != nullptr;
  LIGHTCC_ASSIGN_OR_RETURN(auto channel, directory_.accept(id, loop_, id, can_receive_to_sink));
  return std::unique_ptr<RecvChannel>(std::move(channel));
}

}  // namespace lightcc
