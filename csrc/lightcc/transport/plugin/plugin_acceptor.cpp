#include "lightcc/transport/plugin/plugin_acceptor.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace lightcc {
namespace {

// Taken from the plugin by one pump().
constexpr int kMostAtOnce = 16;

constexpr std::uint32_t kNobody = 0xffffffff;

}  // namespace

bool PluginAcceptor::Before::operator()(const ChannelId& a, const ChannelId& b) const {
  return std::tie(a.source, a.destination, a.process_set, a.lane) <
         std::tie(b.source, b.destination, b.process_set, b.lane);
}

Result<std::shared_ptr<PluginAcceptor>> PluginAcceptor::listen(
    std::shared_ptr<PluginLoop> loop, const PluginAcceptorOptions& options) {
  auto acceptor = std::make_shared<PluginAcceptor>(std::move(loop), options);
  PluginTable& table = options.context->table();
  const auto result = table.listen(
      options.context->get(), options.device, acceptor->handle_.data(), &acceptor->listen_comm_);
  if (result != abi::Result::kSuccess || acceptor->listen_comm_ == nullptr) {
    acceptor->listen_comm_ = nullptr;
    return plugin_error(ErrorCode::kSystem, table, "listen", result);
  }
  return acceptor;
}

PluginAcceptor::PluginAcceptor(std::shared_ptr<PluginLoop> loop, PluginAcceptorOptions options)
    : loop_(std::move(loop)), options_(std::move(options)) {
  loop_->join(*this);
}

PluginAcceptor::~PluginAcceptor() {
  loop_->leave(*this);
  if (listen_comm_ != nullptr) {
    (void)options_.context->table().close_listen(listen_comm_);
  }
}

Status PluginAcceptor::take_error() {
  return std::exchange(error_, Status());
}

bool PluginAcceptor::is_active() const {
  return listen_comm_ != nullptr && std::ranges::any_of(channels_, [](const auto& entry) {
           return entry.second->waits_for_sender();
         });
}

bool PluginAcceptor::pump() {
  bool moved = false;
  for (int i = 0; i < kMostAtOnce && newcomers_.size() < options_.max_parked; ++i) {
    if (!accept_newcomer()) {
      break;
    }
    moved = true;
  }
  for (auto newcomer = newcomers_.begin(); newcomer != newcomers_.end();) {
    const bool is_heard = hear(*newcomer);
    moved = moved || is_heard;
    newcomer = is_heard ? newcomers_.erase(newcomer) : std::next(newcomer);
  }
  drop_old();
  return moved;
}

bool PluginAcceptor::accept_newcomer() {
  void* comm = nullptr;
  PluginTable& table = options_.context->table();
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
                            options_.context, comm, PluginComm::Kind::kRecv, kNobody),
                        .since = loop_->attended()});
  return true;
}

/// True when the newcomer is dealt with: admitted, parked or refused.
bool PluginAcceptor::hear(Newcomer& newcomer) {
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
  return loop_->attended() - newcomer.since > options_.hello_timeout;
}

void PluginAcceptor::admit(Newcomer& newcomer) {
  PluginHelloBytes bytes{};
  std::ranges::copy(newcomer.comm->small_memory().first<kPluginHelloBytes>(), bytes.begin());
  const auto hello = decode_plugin_hello(bytes, options_.secret, options_.nonce);
  if (!hello.ok() || hello->world_id != options_.world_id ||
      hello->piece_bytes > options_.piece_bytes) {
    return;
  }
  const auto found = channels_.find(hello->channel);
  PluginRecvChannel* const channel = found == channels_.end() ? nullptr : found->second;
  if (channel != nullptr && channel->lacks(*hello)) {
    channel->attach(std::move(newcomer.comm), *hello);
  } else if (channel == nullptr || hello->attempt > channel->attempt()) {
    park(newcomer, *hello);
  }
}

void PluginAcceptor::park(Newcomer& newcomer, const PluginHello& hello) {
  for (auto other = parked_.begin(); other != parked_.end();) {
    if (!(other->hello.channel == hello.channel)) {
      ++other;
      continue;
    }
    if (other->hello.attempt > hello.attempt || other->hello == hello) {
      return;  // Stale, or a duplicate.
    }
    other = other->hello.attempt < hello.attempt ? parked_.erase(other) : std::next(other);
  }
  if (parked_.size() < options_.max_parked) {
    parked_.push_back({std::move(newcomer.comm), hello, loop_->attended()});
  }
}

void PluginAcceptor::drop_old() {
  while (!parked_.empty() && loop_->attended() - parked_.front().since > options_.park_timeout) {
    parked_.pop_front();
  }
}

Result<std::unique_ptr<RecvChannel>> PluginAcceptor::accept(const ChannelId& id) {
  if (channels_.contains(id)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the channel %u -> %u (process set %u, lane %u) was accepted already",
                      id.source,
                      id.destination,
                      id.process_set,
                      id.lane);
  }
  auto channel = std::make_unique<PluginRecvChannel>(
      loop_, id, options_.context->table().irecv_take() != nullptr);
  channel->set_on_destroyed([acceptor = weak_from_this(), id] {
    if (const auto self = acceptor.lock()) {
      self->channels_.erase(id);
    }
  });
  channels_.emplace(id, channel.get());
  attach_parked(id, *channel);
  return std::unique_ptr<RecvChannel>(std::move(channel));
}

void PluginAcceptor::attach_parked(const ChannelId& id, PluginRecvChannel& channel) {
  for (auto parked = parked_.begin(); parked != parked_.end();) {
    if (parked->hello.channel == id && channel.lacks(parked->hello)) {
      channel.attach(std::move(parked->comm), parked->hello);
      parked = parked_.erase(parked);
    } else {
      ++parked;
    }
  }
}

}  // namespace lightcc
