// The server of the TCP store: one thread, one epoll set, any number of clients.
//
// Each client has at most one request under way: it is read, then either answered or parked (a get
// of a key that is not there yet, a gather of which a share is missing, a watch of what has not
// changed), then the answer is written,
// then the next request is read. While a request is parked or its answer is written nothing more is
// read from that client, so what a client costs is bounded by one frame. Buffers grow with what
// arrives, not with what a length promises.
//
// A client that has joined a round is the one exception: it is written to unasked when its
// round fails. Between two requests that is done at once, otherwise in the place of the answer
// or behind it. Its end, however it comes about, fails the round unless it has left.
//
// Malformed requests end the connection. Not handled: persistence, and more than one thread: a
// store moves a few messages per rank when a world is made.
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "lightcc/base/unique_fd.hpp"
#include "lightcc/net/authenticated.hpp"
#include "lightcc/net/poller.hpp"
#include "lightcc/rendezvous/round_table.hpp"
#include "lightcc/rendezvous/served_client.hpp"
#include "lightcc/rendezvous/store_map.hpp"
#include "lightcc/rendezvous/tcp_store.hpp"
#include "lightcc/rendezvous/watch_table.hpp"
#include "lightcc/wire/store_messages.hpp"

namespace lightcc {
namespace {

constexpr std::uint64_t kListenerTag = 0;
constexpr std::uint64_t kStopTag = 1;
constexpr std::uint64_t kFirstClientTag = 2;
// What one client may move before the others have their turn.
constexpr int kStepsPerTurn = 16;

using Client = detail::ServedClient;
using detail::Parked;

class Server final : public TcpStoreServer {
 public:
  Server(std::unique_ptr<AuthListener> listener,
         Poller poller,
         UniqueFd stop,
         std::size_t capacity_bytes)
      : listener_(std::move(listener)),
        address_(listener_->address()),
        poller_(std::move(poller)),
        stop_(std::move(stop)),
        map_(capacity_bytes) {}

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() override {
    if (thread_.joinable()) {
      (void)::eventfd_write(stop_.get(), 1);  // Cannot fail: the counter is far from full.
      thread_.join();
    }
  }

  const SocketAddress& address() const override { return address_; }

  Status launch() {
    LIGHTCC_RETURN_IF_ERROR(poller_.add(listener_->wait_fd(), EPOLLIN, kListenerTag));
    LIGHTCC_RETURN_IF_ERROR(poller_.add(stop_.get(), EPOLLIN, kStopTag));
    // Signals are for the process's own threads.
    sigset_t all{};
    sigset_t before{};
    (void)sigfillset(&all);
    (void)::pthread_sigmask(SIG_SETMASK, &all, &before);
    Status status;
    try {
      thread_ = std::thread([this] { serve(); });
    } catch (const std::system_error& error) {
      status = make_system_error(
          ErrorCode::kSystem, error.code().value(), "cannot start the store's thread");
    }
    (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return status;
  }

 private:
  using Clients = std::map<std::uint64_t, Client>;

  void serve() {
    (void)::pthread_setname_np(::pthread_self(), "lightcc-store");
    while (true) {
      Poller::Events buffer;
      const auto events = poller_.wait(buffer, -1);
      if (!events.ok()) {
        return;  // epoll itself is broken; clients run into their deadlines.
      }
      for (const epoll_event& event : events.value()) {
        if (event.data.u64 == kStopTag) {
          return;
        }
        handle(event.data.u64, event.events);
      }
    }
  }

  // Memory may run out for one client's request; that ends this client, not the store.
  void handle(std::uint64_t tag, std::uint32_t events) noexcept {
    try {
      if (tag == kListenerTag) {
        welcome();
        return;
      }
      const auto client = clients_.find(tag);
      if (client != clients_.end() && !advance(client, events)) {
        drop(client);
      }
    } catch (const std::exception&) {
      if (const auto client = clients_.find(tag); client != clients_.end()) {
        drop(client);
      }
    }
  }

  void welcome() {
    while (true) {
      auto polled = listener_->poll();
      if (!polled.ok()) {
        // Nobody new can come; those who are here are served on.
        poller_.remove(listener_->wait_fd());
        return;
      }
      std::optional<AuthenticatedSocket> socket = std::move(polled).value();
      if (!socket) {
        return;
      }
      if (!std::ranges::equal(socket->hello, as_bytes(kStoreHello))) {
        continue;  // It knows the secret, but wanted somebody else.
      }
      const std::uint64_t tag = next_tag_++;
      if (poller_.add(socket->fd.get(), EPOLLIN, tag).ok()) {
        clients_[tag].fd = std::move(socket->fd);
        clients_[tag].events = EPOLLIN;
      }
    }
  }

  void drop(Clients::iterator client) {
    if (client->second.stage == Client::Stage::kParked) {
      parked_.erase(client->second.parked_at);
    }
    watches_.remove(client->first);
    poller_.remove(client->second.fd.get());
    const std::uint64_t tag = client->first;
    const auto round = std::move(client->second.round);
    const auto last_will = std::move(client->second.last_will);
    clients_.erase(client);
    if (!round.has_value()) {
      return;
    }
    try {
      fail_round(*round, last_will);
      leave(*round, tag);
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // No memory to tell all: those who were not told run into their deadlines.
    }
  }

  /// Moves one client on. False: it is gone or broke the protocol.
  bool advance(Clients::iterator entry, std::uint32_t events) {
    Client& client = entry->second;
    bool moved = true;
    for (int step = 0; step < kStepsPerTurn && moved; ++step) {
      bool alive = true;
      switch (client.stage) {
        case Client::Stage::kReadHead:
          alive = client.read_towards(kStoreFrameHeadBytes, moved) && finish_head(client);
          break;
        case Client::Stage::kReadBody:
          alive = client.read_towards(client.body_bytes, moved) && finish_body(entry);
          break;
        case Client::Stage::kParked:
        case Client::Stage::kWatch:
        case Client::Stage::kStay:
          moved = false;
          alive = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0;
          break;
        case Client::Stage::kWrite:
          alive = client.write_answer(moved);
          if (client.stage == Client::Stage::kReadHead) {
            tell_failure(client);
          }
          break;
      }
      if (!alive) {
        return false;
      }
      events = 0;  // They told of the state before the first step.
    }
    return watch(entry);
  }

  bool watch(Clients::iterator entry) {
    Client& client = entry->second;
    const std::uint32_t wanted = client.wanted_events();
    if (client.events == wanted) {
      return true;
    }
    client.events = wanted;
    return poller_.modify(client.fd.get(), wanted, entry->first).ok();
  }

  static bool finish_head(Client& client) {
    if (client.in.size() < kStoreFrameHeadBytes) {
      return true;
    }
    const auto body_bytes = decode_store_body_bytes(client.in);
    if (!body_bytes.ok()) {
      return false;
    }
    client.body_bytes = body_bytes.value();
    client.in.clear();
    client.stage = Client::Stage::kReadBody;
    return true;
  }

  bool finish_body(Clients::iterator entry) {
    Client& client = entry->second;
    if (client.in.size() < client.body_bytes) {
      return true;
    }
    auto request = decode_store_request(client.in);
    client.in = Bytes();  // Gives the memory back: the next request is likely to be small.
    if (!request.ok()) {
      return false;
    }
    if (tell_failure(client)) {
      return true;  // Whatever it asked for.
    }
    switch (request->kind) {
      case StoreRequest::Kind::kSet:
        set(client, *request);
        break;
      case StoreRequest::Kind::kGet:
        get(entry, request->key);
        break;
      case StoreRequest::Kind::kRemovePrefix:
        remove_prefix(request->key);
        client.answer(StoreAnswer());
        break;
      case StoreRequest::Kind::kCompareAndSet:
        compare_and_set(client, *request);
        break;
      case StoreRequest::Kind::kWatch:
        watch_keys(entry, *request);
        break;
      case StoreRequest::Kind::kGather:
        gather(entry, *request);
        break;
      case StoreRequest::Kind::kJoin:
        if (client.round.has_value()) {
          return false;
        }
        client.last_will = std::make_shared<const Bytes>(std::move(request->value));
        rounds_.join(request->key, entry->first);
        client.round = std::move(request->key);
        if (!tell_failure(client)) {
          client.answer(StoreAnswer());
        }
        break;
      case StoreRequest::Kind::kFail:
        fail_round(request->key, std::make_shared<const Bytes>(std::move(request->value)));
        if (!tell_failure(client)) {
          client.answer(StoreAnswer());
        }
        break;
      case StoreRequest::Kind::kLeave:
      case StoreRequest::Kind::kLeaveLast:
        if (client.round != request->key) {
          return false;
        }
        if (request->kind == StoreRequest::Kind::kLeaveLast &&
            rounds_.members(request->key).size() > 1) {
          client.stage = Client::Stage::kStay;
          break;
        }
        client.round.reset();
        leave(request->key, entry->first);
        client.answer(StoreAnswer());
        break;
    }
    return true;
  }

  /// Answers `client` with the failure of its round, once. False: there is nothing to say.
  bool tell_failure(Client& client) {
    if (!client.round.has_value() || client.has_heard) {
      return false;
    }
    const auto failure = rounds_.failure(*client.round);
    if (failure == nullptr) {
      return false;
    }
    client.has_heard = true;
    StoreAnswer failed;
    failed.kind = StoreAnswer::Kind::kFailed;
    failed.value = *failure;
    client.answer(failed);
    return true;
  }

  // Their answers are written when epoll says so: this is in the middle of another client's turn.
  void fail_round(const std::string& prefix, RoundTable::Failure why) {
    if (!rounds_.fail(prefix, std::move(why))) {
      return;
    }
    const std::set<RoundTable::Member> members = rounds_.members(prefix);
    for (const RoundTable::Member tag : members) {
      const auto found = clients_.find(tag);
      if (found == clients_.end()) {
        continue;
      }
      Client& client = found->second;
      const bool is_between_requests =
          client.stage == Client::Stage::kReadHead && client.in.empty();
      if (client.stage == Client::Stage::kParked) {
        parked_.erase(client.parked_at);
      } else if (client.stage == Client::Stage::kWatch) {
        watches_.remove(tag);
      } else if (client.stage != Client::Stage::kStay && !is_between_requests) {
        continue;  // It is told with, or after, its answer.
      }
      if (tell_failure(client) && !watch(found)) {
        drop(found);
      }
    }
  }

  void leave(const std::string& prefix, RoundTable::Member member) {
    if (rounds_.leave(prefix, member)) {
      remove_prefix(prefix);
      return;
    }
    const auto& members = rounds_.members(prefix);
    const auto last = members.size() == 1 ? clients_.find(*members.begin()) : clients_.end();
    if (last == clients_.end() || last->second.stage != Client::Stage::kStay) {
      return;
    }
    last->second.round.reset();
    if (rounds_.leave(prefix, last->first)) {
      remove_prefix(prefix);
    }
    last->second.answer(StoreAnswer());
    if (!watch(last)) {
      drop(last);
    }
  }

  void set(Client& client, StoreRequest& request) {
    const Status status = map_.set(request.key, std::move(request.value));
    if (status.ok()) {
      wake_parked(request.key);
      answer_watches(request.key);
    }
    client.answer(done_or_refused(status));
  }

  void compare_and_set(Client& client, StoreRequest& request) {
    const StoreMap::Value before = map_.find(request.key);
    auto now = map_.compare_and_set(request.key, request.expected, std::move(request.value));
    if (!now.ok()) {
      client.answer(done_or_refused(now.status()));
      return;
    }
    if (now.value() != before) {
      wake_parked(request.key);
      answer_watches(request.key);
    }
    if (now.value() != nullptr) {
      client.answer_value(std::move(now).value());
    } else {
      client.answer({.kind = StoreAnswer::Kind::kAbsent});
    }
  }

  void remove_prefix(const std::string& prefix) {
    map_.remove_prefix(prefix);
    answer_watches(prefix);
  }

  void watch_keys(Clients::iterator entry, StoreRequest& request) {
    Client& client = entry->second;
    if (map_.state(request.key) != request.known_state) {
      client.answer(view_of(request.key));
      return;
    }
    client.stage = Client::Stage::kWatch;
    watches_.add(entry->first, {std::move(request.key), request.known_state});
  }

  StoreAnswer view_of(const std::string& prefix) const {
    auto view = map_.view(prefix);
    StoreAnswer answer = done_or_refused(view.status());
    if (view.ok()) {
      answer.kind = StoreAnswer::Kind::kView;
      answer.view = std::move(view).value();
    }
    return answer;
  }

  // What is below `changed`, which may be a key, may have changed. The answers are written when
  // epoll says so: this is in the middle of another client's turn.
  void answer_watches(const std::string& changed) {
    for (const WatchTable::Client tag : watches_.due(changed, map_)) {
      const auto client = clients_.find(tag);
      const WatchTable::Watch* const watched = watches_.find(tag);
      if (client == clients_.end() || watched == nullptr) {
        continue;  // One that was dropped may take others with it.
      }
      client->second.answer(view_of(watched->prefix));
      watches_.remove(tag);
      if (!watch(client)) {
        drop(client);
      }
    }
  }

  static StoreAnswer done_or_refused(const Status& status) {
    StoreAnswer answer;
    if (!status.ok()) {
      answer.kind = StoreAnswer::Kind::kRefused;
      answer.code = status.code();
      answer.text = status.message();
    }
    return answer;
  }

  void get(Clients::iterator entry, std::string& key) {
    Client& client = entry->second;
    if (auto value = map_.find(key)) {
      client.answer_value(std::move(value));
      return;
    }
    client.parked_at = parked_.emplace(std::move(key), entry->first);
    client.stage = Client::Stage::kParked;
  }

  void gather(Clients::iterator entry, StoreRequest& request) {
    const Status kept =
        map_.add_share(request.key, request.index, request.count, std::move(request.value));
    if (!kept.ok()) {
      entry->second.answer(done_or_refused(kept));
      return;
    }
    answer_watches(request.key + '/' + std::to_string(request.index));
    if (map_.find(request.key) != nullptr) {
      wake_parked(request.key);
      answer_watches(request.key);
    }
    get(entry, request.key);
  }

  // Their answers are written when epoll says so: this is in the middle of another client's turn.
  void wake_parked(const std::string& key) {
    const StoreMap::Value value = map_.find(key);
    const auto [first, end] = parked_.equal_range(key);
    std::vector<std::uint64_t> tags;
    for (auto waiting = first; waiting != end; ++waiting) {
      clients_.at(waiting->second).answer_value(value);
      tags.push_back(waiting->second);
    }
    parked_.erase(first, end);
    for (const std::uint64_t tag : tags) {
      const auto client = clients_.find(tag);  // One that was dropped may take others with it.
      if (client != clients_.end() && !watch(client)) {
        drop(client);
      }
    }
  }

  const std::unique_ptr<AuthListener> listener_;
  const SocketAddress address_;
  const Poller poller_;
  const UniqueFd stop_;
  // From here on, the thread's own.
  StoreMap map_;
  Clients clients_;
  Parked parked_;
  WatchTable watches_;
  RoundTable rounds_;
  std::uint64_t next_tag_ = kFirstClientTag;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<TcpStoreServer>> TcpStoreServer::start(const SocketAddress& bind_address,
                                                              std::string secret,
                                                              std::size_t capacity_bytes) {
  LIGHTCC_ASSIGN_OR_RETURN(auto listener,
                           AuthListener::listen(bind_address, std::move(secret), {}));
  LIGHTCC_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) {
    return make_system_error(ErrorCode::kSystem, errno, "cannot make an event descriptor");
  }
  auto server = std::make_unique<Server>(
      std::move(listener), std::move(poller), std::move(stop), capacity_bytes);
  LIGHTCC_RETURN_IF_ERROR(server->launch());
  return std::unique_ptr<TcpStoreServer>(std::move(server));
}

}  // namespace lightcc
