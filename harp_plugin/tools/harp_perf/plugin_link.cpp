// Any NCCL net plugin, at the newest version of the ABI that it has.
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "abi/types.hpp"
#include "driver.hpp"
#include "library.hpp"
#include "link.hpp"

namespace harp_perf {
namespace {

using harp::abi::Result;
using net_conform::Driver;
using net_conform::Library;

constexpr int kNewestVersion = 12;
constexpr int kOldestVersion = 5;  // Version 4 may block.

/// A plugin and one context of it.
class Plugin {
 public:
  explicit Plugin(const std::string& path) {
    std::string problem;
    for (int version = kNewestVersion; version >= kOldestVersion; --version) {
      library_ = std::make_unique<Library>(path, version);
      problem = library_->load();
      if (problem.empty()) {
        break;
      }
    }
    if (!problem.empty()) {
      throw std::runtime_error(problem);
    }
    if (driver().init(&context_) != Result::kSuccess) {
      throw std::runtime_error(path + " does not start; NET_CONFORM_DEBUG=1 shows its log");
    }
  }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;
  ~Plugin() { (void)driver().finalize(context_); }

  Driver& driver() const { return library_->driver(); }
  void* context() const { return context_; }

 private:
  std::unique_ptr<Library> library_;
  void* context_ = nullptr;
};

void check(Result result, const char* what) {
  if (result != Result::kSuccess) {
    throw std::runtime_error(std::string(what) + ": " + net_conform::name_of(result));
  }
}

class PluginLink final : public Link {
 public:
  PluginLink(std::shared_ptr<Plugin> plugin, void* comm, bool is_sending)
      : plugin_(std::move(plugin)), comm_(comm), is_sending_(is_sending) {}
  PluginLink(const PluginLink&) = delete;
  PluginLink& operator=(const PluginLink&) = delete;
  ~PluginLink() override {
    for (const Registration& one : registrations_) {
      (void)driver().dereg_mr(comm_, one.mr);
    }
    (void)(is_sending_ ? driver().close_send(comm_) : driver().close_recv(comm_));
  }

  bool post(std::span<std::byte> message, std::size_t slot) override {
    void* const mr = registration_of(message);
    void* request = nullptr;
    if (is_sending_) {
      check(driver().isend(comm_, message.data(), message.size(), 0, mr, &request), "isend");
    } else {
      void* data = message.data();
      std::size_t bytes = message.size();
      int tag = 0;
      void* registered = mr;
      check(driver().irecv(comm_, 1, &data, &bytes, &tag, &registered, &request), "irecv");
    }
    requests_[slot] = request;
    return request != nullptr;
  }
  bool is_done(std::size_t slot) override {
    bool done = false;
    int bytes = 0;
    check(driver().test(requests_[slot], &done, &bytes), "test");
    return done;
  }

 private:
  struct Registration {
    std::byte* data;
    std::size_t bytes;
    void* mr;
  };

  Driver& driver() { return plugin_->driver(); }

  /// NCCL registers its buffers once.
  void* registration_of(std::span<std::byte> message) {
    for (const Registration& one : registrations_) {
      if (one.data == message.data() && one.bytes == message.size()) {
        return one.mr;
      }
    }
    void* mr = nullptr;
    check(driver().reg_mr(comm_, message.data(), message.size(), harp::abi::kPtrHost, &mr),
          "regMr");
    registrations_.push_back({message.data(), message.size(), mr});
    return mr;
  }

  std::shared_ptr<Plugin> plugin_;
  void* comm_;
  bool is_sending_;
  std::array<void*, kMostSlots> requests_{};
  std::vector<Registration> registrations_;
};

std::string to_hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[static_cast<unsigned>(byte) >> 4U];
    text += kDigits[static_cast<unsigned>(byte) & 15U];
  }
  return text;
}

void from_hex(const std::string& text, std::span<std::byte> bytes) {
  for (std::size_t i = 0; i < bytes.size() && 2 * i + 1 < text.size(); ++i) {
    bytes[i] = static_cast<std::byte>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
}

}  // namespace

Ends make_plugin_links(const std::string& path, Control& control) {
  const auto plugin = std::make_shared<Plugin>(path);
  Driver& driver = plugin->driver();
  int devices = 0;
  if (driver.devices(&devices) != Result::kSuccess || devices < 1) {
    throw std::runtime_error(path + " finds no device; NET_CONFORM_DEBUG=1 shows its log");
  }
  std::array<std::byte, harp::abi::kHandleBytes> handle{};
  void* listener = nullptr;
  check(driver.listen(plugin->context(), 0, handle.data(), &listener), "listen");
  control.say(to_hex(handle));
  std::array<std::byte, harp::abi::kHandleBytes> peer{};
  from_hex(control.hear(), peer);
  void* out = nullptr;
  void* in = nullptr;
  while (out == nullptr || in == nullptr) {
    if (out == nullptr) {
      check(driver.connect(plugin->context(), 0, peer.data(), &out), "connect");
    }
    if (in == nullptr) {
      check(driver.accept(listener, &in), "accept");
    }
    std::this_thread::yield();
  }
  (void)driver.close_listen(listener);
  return {.out = std::make_unique<PluginLink>(plugin, out, true),
          .in = std::make_unique<PluginLink>(plugin, in, false)};
}

Ends make_links(const std::string& via,
                bool is_first,
                const std::string& here,
                const std::string& peer,
                Control& control) {
  return via == "tcp" ? make_tcp_links(is_first, here, peer, control)
                      : make_plugin_links(via, control);
}

}  // namespace harp_perf
