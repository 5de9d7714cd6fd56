// net-conform: drives a network plugin as NCCL does, and says which rules it keeps.
//
// There are two sides, A and B, that run the same cases in lockstep: two threads, or two processes
// of which the second one is started with the same arguments and talks over its standard input and
// output. A reports for both.
#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX's, with SIGPIPE
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cases.hpp"
#include "options.hpp"
#include "report.hpp"
#include "watchdog.hpp"

namespace net_conform {
namespace {

bool is_chosen(const Case& one, const Options& options) {
  return options.tests.empty() || std::ranges::any_of(options.tests, [&](const std::string& start) {
           return std::string(one.name).starts_with(start);
         });
}

void print_list() {
  std::vector<Case> cases = all_cases();
  cases.insert(cases.end(), unload_cases().begin(), unload_cases().end());
  for (const Case& one : cases) {
    std::printf("%s\n", one.name);
    for (const char* id : one.rules) {
      const auto rule = std::ranges::find(rules(), std::string_view(id), &Rule::id);
      std::printf("    %-28s %s\n", id, rule != rules().end() ? rule->text : "?");
    }
  }
}

/// Runs the body of a case on one side; what ends it early is in the report.
/// False: the other side is gone.
bool run_body(const Case& one, Side& side) {
  try {
    one.run(side);
  } catch (const CaseFailed&) {
    return true;
  } catch (const PeerStopped& stopped) {
    return !stopped.is_gone();
  } catch (const std::exception& error) {
    check(one.rules.front(), false, "%s", error.what());
  }
  return true;
}

/// Both sides of every case; `side` A prints.
class Runner {
 public:
  explicit Runner(Side* side) : side_(*side) {}

  void run(std::span<const Case> cases) {
    for (const Case& one : cases) {
      ++number_;
      if (!is_chosen(one, side_.options())) {
        continue;
      }
      const std::string reason(reason_to_skip(one, side_.options(), side_.properties().max_recvs));
      if (!reason.empty()) {
        if (side_.is_a()) {
          for (const char* rule : one.rules) {
            skip(rule, reason);
          }
          report().print(one.rules);
        }
        continue;
      }
      if (one.needs == Needs::kNoPeer) {
        if (side_.is_a()) {
          set_current_case(one.name);
          side_.begin_case(number_);
          run_body(one, side_);
          finish(one);
        }
        continue;
      }
      if (!peer_is_gone_) {
        run_with_peer(one);
      }
    }
  }

 private:
  void run_with_peer(const Case& one) {
    set_current_case(one.name);
    side_.begin_case(number_);
    peer_is_gone_ = !run_body(one, side_);
    // The peer of this case is meant to die, and the last case that needs it is over.
    const bool may_die = std::string_view(one.name) == "teardown.peer-killed";
    if (!peer_is_gone_ && !may_die) {
      side_.set_deadline(side_.options().limit_s + side_.options().peer_limit_s);
      try {
        // Threads share the report; only a process has lines to carry.
        const bool is_process = side_.options().has_peer_process;
        const std::string lines = is_process && !side_.is_a() ? report().drain() : "";
        report().merge(side_.channel().end_case(lines, side_.deadline()));
      } catch (const PeerStopped&) {
        peer_is_gone_ = true;
      }
    }
    if (side_.is_a()) {
      if (peer_is_gone_) {
        check("calls.no-crash", false, "the other side is gone, testing %s", one.name);
      }
      finish(one);
    }
    peer_is_gone_ = peer_is_gone_ || may_die;
  }

  /// A rule that no check reached is not kept, unless something else in the case broke first.
  void finish(const Case& one) {
    const bool anything_failed = report().has_failed();
    for (const char* rule : one.rules) {
      if (!report().has(rule)) {
        if (anything_failed) {
          skip(rule, "its case ended before");
        } else {
          check(rule, false, "nothing looked at it");
        }
      }
    }
    report().print(one.rules);
  }

  Side& side_;
  std::uint32_t number_ = 0;
  bool peer_is_gone_ = false;
};

/// The peer's process, at the other end of two pipes.
class PeerProcess {
 public:
  explicit PeerProcess(const Options& options) {
    std::array<int, 2> to_peer{};
    std::array<int, 2> from_peer{};
    if (::pipe2(to_peer.data(), O_CLOEXEC) != 0 || ::pipe2(from_peer.data(), O_CLOEXEC) != 0) {
      std::perror("net-conform: pipe");
      return;
    }
    std::vector<std::string> words = peer_command(options);
    std::vector<char*> arguments;
    arguments.reserve(words.size() + 1);
    for (std::string& word : words) {
      arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(to_peer[0], STDIN_FILENO);
      ::dup2(from_peer[1], STDOUT_FILENO);
      ::execvp(arguments[0], arguments.data());
      std::perror("net-conform: cannot start the peer");
      ::_exit(kExitUsage);
    }
    ::close(to_peer[0]);
    ::close(from_peer[1]);
    channel_ = std::make_unique<Channel>(from_peer[0], to_peer[1]);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  ~PeerProcess() { wait(); }

  Channel* channel() const { return channel_.get(); }
  /// Closes the channel, which ends a peer that is still there.
  void wait() {
    if (channel_ != nullptr) {
      channel_->close();
    }
    if (pid_ > 0) {
      int status = 0;
      ::waitpid(pid_, &status, 0);
      if (WIFEXITED(status) && WEXITSTATUS(status) == kExitBlocked) {
        check("calls.return", false, "at the peer; its line is on standard error");
      }
      pid_ = -1;
    }
  }

 private:
  ::pid_t pid_ = -1;
  std::unique_ptr<Channel> channel_;
};

/// A's cases, then, when `end_peer` has returned and B is through, those that unload the library.
template <typename EndPeer>
void run_main(Side& side, EndPeer end_peer) {
  Runner runner(&side);
  runner.run(all_cases());
  end_peer();
  runner.run(unload_cases());
  side.end();
}

void run_with_thread(Library* library, const Options& options) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    std::perror("net-conform: socketpair");
    return;
  }
  Channel channel_of_a(ends[0], ends[0]);
  Channel channel_of_b(ends[1], ends[1]);
  Side a(true, library, &channel_of_a, options);
  Side b(false, library, &channel_of_b, options);
  // Two communicators of one process: the second init is one more.
  if (a.begin("load.devices") && b.begin("load.init-again")) {
    std::thread peer([&] {
      Runner(&b).run(all_cases());
      b.end();
    });
    run_main(a, [&] { peer.join(); });
  }
}

void run_with_process(Library* library, const Options& options) {
  PeerProcess peer(options);
  if (peer.channel() == nullptr) {
    return;
  }
  Side side(true, library, peer.channel(), options);
  if (side.begin("load.devices")) {
    run_main(side, [&] { peer.wait(); });
  }
}

/// B, in a process of its own.
void run_as_peer(Library* library, const Options& options) {
  Channel channel(::dup(STDIN_FILENO), ::dup(STDOUT_FILENO));
  Side side(false, library, &channel, options);
  if (side.begin("load.devices")) {
    Runner(&side).run(all_cases());
  }
  side.end();
}

int run(const Options& options) {
  CallLimits limits;
  limits.blocking = std::chrono::milliseconds(
      static_cast<std::int64_t>(1000 * (options.limit_s + options.peer_limit_s)));
  start_watchdog(limits, options.is_peer ? STDERR_FILENO : STDOUT_FILENO);
  ::signal(SIGPIPE, SIG_IGN);
  Library library(options.plugin, options.version);
  const std::string problem = library.load();
  if (options.is_peer) {
    if (!problem.empty()) {
      std::fprintf(stderr, "net-conform: %s\n", problem.c_str());
      return kExitFailed;
    }
    run_as_peer(&library, options);
    return 0;
  }
  check("load.symbol", problem.empty(), "%s", problem.c_str());
  report().print();
  if (problem.empty()) {
    if (options.has_peer_process) {
      run_with_process(&library, options);
    } else {
      run_with_thread(&library, options);
    }
    note_calls();
  }
  report().print();
  return report().has_failed() ? kExitFailed : 0;
}

}  // namespace
}  // namespace net_conform

int main(int argc, char** argv) {
  net_conform::Options options;
  if (!net_conform::parse_options({argv + 1, argv + argc}, &options)) {
    return net_conform::kExitUsage;
  }
  if (options.only_list) {
    net_conform::print_list();
    return 0;
  }
  return net_conform::run(options);
}
