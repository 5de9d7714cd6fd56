// An arrival wakes nobody beside the thread that polls, whatever brings it: the world's own thread
// sleeps at the gate of a Waker, which whoever drives in its place has shut.
#include <sys/eventfd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/unique_fd.hpp"
#include "lightcc/engine/waker.hpp"

#include "transport/plugin_test_support.hpp"
#include "transport/tcp_test_support.hpp"

namespace lightcc::arrival_test {
namespace {

using namespace transport_test;  // NOLINT: the tests' own helpers

struct Subject {
  std::string name;
  std::function<std::unique_ptr<Transport>()> make;
};

std::vector<Subject> networks() {
  std::vector<Subject> out{
      {"tcp", [] { return tcp_test::make_transport(tcp_test::make_options()); }}};
  for (const plugin_test::PluginUnderTest& plugin : plugin_test::kPlugins) {
    out.push_back({plugin.name, [path = plugin.path] {
                     return plugin_test::make_transport(plugin_test::make_options(path));
                   }});
  }
  return out;
}

class ArrivalTest : public ::testing::TestWithParam<Subject> {
 protected:
  /// Starts a message, and posts its receive.
  std::pair<RequestId, RequestId> start() {
    const RequestId received = must(pair_.recv->irecv(into_));
    return {must(pair_.send->isend(message_)), received};
  }

  // The test ends with a message under way, so the buffers outlive the transports.
  Bytes message_ = pattern(300'000, 1);
  Bytes into_ = Bytes(message_.size());
  TransportPair pair_{GetParam().make(), GetParam().make()};
  SleepWord word_{};
  UniqueFd bell_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  Waker waker_ = Waker::make(word_, bell_.get()).value();
};
std::string subject_name(const ::testing::TestParamInfo<Subject>& subject) {
  return subject.param.name;
}
INSTANTIATE_TEST_SUITE_P(all, ArrivalTest, ::testing::ValuesIn(networks()), subject_name);

TEST_P(ArrivalTest, wakes_nobody_beside_the_thread_that_polls) {
  pair_.open();
  ASSERT_TRUE(waker_.watch(pair_.b->wait_fd(), 1).ok());
  waker_.shut_gate();
  bool is_woken = false;
  std::thread own_thread([&] { is_woken = waker_.wait_at_gate(kHang); });
  int times_open = 0;
  for (int round = 0; round < 20; ++round) {
    const auto [sent, received] = start();
    const auto deadline = std::chrono::steady_clock::now() + kHang;
    while (!(must(pair_.recv->test(received)) && must(pair_.send->test(sent)))) {
      poll_often({pair_.a.get()}, 1);
      times_open += waker_.wait_at_gate(Duration(0)) ? 1 : 0;
      poll_often({pair_.b.get()}, 1);
      if (std::chrono::steady_clock::now() > deadline) {
        ADD_FAILURE() << "nothing arrives";
        break;
      }
    }
  }
  EXPECT_EQ(times_open, 0);
  // Who stops polling leaves what comes to the own thread.
  (void)start();
  poll_often({pair_.a.get()}, 1);
  pair_.b->prepare_to_wait();
  EXPECT_FALSE(waker_.wait_at_gate(Duration(0)));
  waker_.open_gate();
  own_thread.join();
  EXPECT_TRUE(is_woken);
}

}  // namespace
}  // namespace lightcc::arrival_test
