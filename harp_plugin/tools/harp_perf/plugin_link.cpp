// Any NCCL net plugin, at the newest version of the ABI that it has.
#include <sys/mman.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
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

/// Variables of the environment, as long as this lives.
class Environment {
 public:
  /// `words`: NAME=VALUE, with spaces between them.
  explicit Environment(const std::string& words) {
    std::istringstream list(words);
    for (std::string word; list >> word;) {
      const std::size_t equals = word.find('=');
      if (equals == 0 || equals == std::string::npos) {
        throw std::runtime_error("'" + word + "': expected NAME=VALUE before the plugin");
      }
      names_.push_back(word.substr(0, equals));
      // NOLINTNEXTLINE(concurrency-mt-unsafe): no plugin has a thread that reads it now
      ::setenv(names_.back().c_str(), word.substr(equals + 1).c_str(), /*overwrite=*/1);
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {
    for (const std::string& name : names_) {
      ::unsetenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): as above
    }
  }

 private:
  std::vector<std::string> names_;
};

/// Another file with the same contents: loaded beside the first one, it is another plugin.
std::string private_copy(const std::string& path) {
  const std::ifstream from(path, std::ios::binary);
  const int fd = ::memfd_create("harp-perf", MFD_CLOEXEC);  // Kept, as the plugin is.
  const std::string copy = "/proc/self/fd/" + std::to_string(fd);
  std::ofstream to(copy, std::ios::binary);
  to << from.rdbuf();
  return to ? copy : path;  // What is wrong with the path, loading it will say.
}

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
  std::array<void*, kMaxSlots> requests_{};
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

Ends make_plugin_links(const std::string& via, Control& control) {
  const std::size_t begin = via.rfind(' ') + 1;
  const std::string path = via.substr(begin);
  const Environment environment(via.substr(0, begin));
  const auto plugin = std::make_shared<Plugin>(begin > 0 ? private_copy(path) : path);
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
  const bool is_each_way = via == "tcp-each-way";
  return via == "tcp" || is_each_way ? make_tcp_links(is_first, is_each_way, here, peer, control)
                                     : make_plugin_links(via, control);
}

}  // namespace harp_perf
