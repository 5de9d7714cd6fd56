// Wake-ups arrive whatever the queues hold; descriptors come from ranks that know the token, and
// from nobody else.
#include "lightcc/transport/shm/host_mail.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/unique_fd.hpp"
#include "lightcc/transport/shm/doorbell.hpp"
#include "lightcc/transport/shm/segment.hpp"

namespace lightcc::host_mail_test {
namespace {

constexpr HostMail::Token kToken = {std::byte{7}, std::byte{3}};

std::string fresh_name() {
  static int count = 0;
  return "lightcc-test-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

bool is_readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

class HostMails : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const std::string& name : names_) {
      auto mail = HostMail::open(name);
      ASSERT_TRUE(mail.ok()) << mail.status().message();
      mails_.push_back(std::move(mail).value());
      mails_.back().meet(names_, kToken);
    }
  }
  HostMail& own() { return mails_[0]; }
  HostMail& other() { return mails_[1]; }
  std::vector<HostMail::Parcel> parcels() {
    other().collect();
    auto parcels = other().take();
    EXPECT_TRUE(parcels.ok()) << parcels.status().message();
    return std::move(parcels).value();
  }

  const std::vector<std::string> names_ = {fresh_name(), fresh_name()};
  std::vector<HostMail> mails_;
  UniqueFd file_{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
};

TEST_F(HostMails, a_bell_wakes_by_mail_once_for_each_sleep) {
  SleepWord word{};
  const Doorbell bell(&word, own().fd(), &own().name_of(1));
  bell.call();
  EXPECT_FALSE(is_readable(other().fd())) << "it is awake";
  word.sleeping.store(kWaiting);
  bell.ring();
  bell.ring();
  EXPECT_EQ(word.sleeping.load(), kAwake);
  EXPECT_TRUE(is_readable(other().fd()));
  EXPECT_TRUE(parcels().empty());
  EXPECT_FALSE(is_readable(other().fd()));
}

TEST_F(HostMails, a_wake_up_arrives_though_much_of_the_sender_lies_unread) {
  // What lies unread counts against the room of the socket that sent it.
  const int room = 1;
  ASSERT_EQ(::setsockopt(own().fd(), SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)), 0);
  std::vector<HostMail> others;
  for (int i = 0; i < 20; ++i) {
    const std::string name = fresh_name();
    auto mail = HostMail::open(name);
    ASSERT_TRUE(mail.ok()) << mail.status().message();
    send_wake_up(own().fd(), HostMail::address_of(name));
    EXPECT_TRUE(is_readable(mail->fd())) << i;
    others.push_back(std::move(mail).value());
  }
}

TEST_F(HostMails, a_descriptor_comes_with_its_number) {
  const auto sent = own().send(1, 42, file_.get());
  ASSERT_TRUE(sent.ok() && *sent);
  const auto come = parcels();
  ASSERT_EQ(come.size(), 1U);
  EXPECT_EQ(come[0].first, 42U);
  EXPECT_NE(come[0].second.get(), file_.get());
  EXPECT_EQ(::fcntl(come[0].second.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_TRUE(parcels().empty()) << "it was taken";
}

TEST_F(HostMails, descriptors_wait_where_a_queue_is_full) {
  std::uint32_t count = 0;
  while (true) {
    const auto sent = own().send(1, count, file_.get());
    ASSERT_TRUE(sent.ok()) << sent.status().message();
    if (!*sent) {
      break;
    }
    ASSERT_LT(++count, 10'000U);
  }
  EXPECT_EQ(parcels().size(), count);
  const auto sent = own().send(1, count, file_.get());
  EXPECT_TRUE(sent.ok() && *sent);
}

TEST_F(HostMails, what_a_stranger_sends_is_dropped) {
  auto stranger = HostMail::open(fresh_name());
  ASSERT_TRUE(stranger.ok());
  stranger->meet(names_, HostMail::Token{});
  const auto sent = stranger->send(1, 1, file_.get());
  ASSERT_TRUE(sent.ok() && *sent);
  const SocketAddress to = HostMail::address_of(names_[1]);
  const std::vector<std::byte> long_text(4096);
  ASSERT_EQ(::sendto(stranger->fd(), nullptr, 0, 0, to.data(), to.length()), 0);
  ASSERT_EQ(::sendto(stranger->fd(), long_text.data(), 4096, 0, to.data(), to.length()), 4096);
  const std::vector<int> many(100, file_.get());
  ASSERT_TRUE(send_fds(stranger->fd(), long_text, many, &to).ok());
  const auto next_number = [this] { return UniqueFd(::dup(file_.get())).get(); };
  const int before = next_number();
  EXPECT_TRUE(parcels().empty());
  EXPECT_FALSE(is_readable(other().fd()));
  EXPECT_EQ(next_number(), before) << "a stranger's descriptor stayed open";
}

TEST_F(HostMails, a_name_is_there_while_its_rank_is) {
  EXPECT_TRUE(*HostMail::exists(names_[1]));
  EXPECT_FALSE(*HostMail::exists(fresh_name()));
  mails_.pop_back();
  EXPECT_FALSE(*HostMail::exists(names_[1]));
  EXPECT_EQ(own().send(1, 1, file_.get()).status().code(), ErrorCode::kPeerFailed);
  send_wake_up(own().fd(), own().name_of(1));  // Does nothing.
}

}  // namespace
}  // namespace lightcc::host_mail_test
