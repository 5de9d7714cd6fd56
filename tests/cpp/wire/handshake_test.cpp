// The handshake byte by byte, and everything that it must refuse.
#include "lightcc/wire/handshake.hpp"

#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "lightcc/base/bytes.hpp"

#include "doubles/shorthand.hpp"

namespace lightcc::handshake_test {
namespace {

const std::string kSecret = "job secret";

Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Nonce counting_from(unsigned first) {
  Nonce nonce{};
  for (std::size_t i = 0; i < nonce.size(); ++i) {
    nonce[i] = static_cast<std::byte>(first + i);
  }
  return nonce;
}

Bytes nonce_bytes(const Nonce& nonce) {
  return {nonce.begin(), nonce.end()};
}

const Nonce kServerNonce = counting_from(0);
const Nonce kClientNonce = counting_from(0x80);

// The three flights for the secret, nonces and hello "rank 3"; the proofs were made with another
// implementation of HMAC.
const Bytes kGreeting = bytes_of("lightcc\x01") + nonce_bytes(kServerNonce);
const Bytes kClientProof =
    from_hex("81f86fb7643c5412a5805d8f521db8aafdab1d6ef525e5c9352ac243a3a763ae");
const Bytes kAnswer = bytes_of("lightcc\x01") + nonce_bytes(kClientNonce) + from_hex("0600") +
                      bytes_of("rank 3") + kClientProof;
const Bytes kServerProof =
    from_hex("c19b85ffb9e27bc03dbba60f3ef5ed33d212a67c6a09ec08a6359b3e2e9077a5");

ServerHandshake make_server(const std::string& secret = kSecret) {
  return {secret, kServerNonce};
}
ClientHandshake make_client(const std::string& secret = kSecret) {
  return {secret, kClientNonce, bytes_of("rank 3")};
}

template <typename Handshake>
Status feed_fails(Handshake handshake, const Bytes& in) {
  Bytes out;
  const auto fed = handshake.feed(in, out);
  EXPECT_FALSE(handshake.done());
  return fed.status();
}

TEST(HandshakeTest, server_speaks_the_documented_bytes) {
  ServerHandshake server = make_server();
  EXPECT_EQ(server.greeting(), kGreeting);
  Bytes out;
  const auto fed = server.feed(kAnswer, out);
  ASSERT_TRUE(fed.ok()) << fed.status().message();
  EXPECT_EQ(fed.value(), kAnswer.size());
  EXPECT_TRUE(server.done());
  EXPECT_EQ(server.hello(), bytes_of("rank 3"));
  EXPECT_EQ(out, kServerProof);
}

TEST(HandshakeTest, client_speaks_the_documented_bytes) {
  ClientHandshake client = make_client();
  Bytes out;
  ASSERT_TRUE(client.feed(kGreeting, out).ok());
  EXPECT_EQ(out, kAnswer);
  EXPECT_FALSE(client.done());
  const auto fed = client.feed(kServerProof, out);
  ASSERT_TRUE(fed.ok()) << fed.status().message();
  EXPECT_TRUE(client.done());
  EXPECT_EQ(out, kAnswer);  // Nothing was added.
}

TEST(HandshakeTest, bytes_may_come_one_at_a_time) {
  ServerHandshake server = make_server();
  Bytes out;
  for (std::size_t i = 0; i < kAnswer.size(); ++i) {
    ASSERT_FALSE(server.done());
    ASSERT_GE(server.wanted(), 1U);
    ASSERT_LE(server.wanted(), kAnswer.size() - i);  // Never more than belongs to the handshake.
    const auto fed = server.feed(std::span(kAnswer).subspan(i, 1), out);
    ASSERT_TRUE(fed.ok()) << fed.status().message();
    ASSERT_EQ(fed.value(), 1U);
  }
  EXPECT_TRUE(server.done());
  EXPECT_EQ(server.wanted(), 0U);
  EXPECT_EQ(out, kServerProof);

  ClientHandshake client = make_client();
  const Bytes flights = kGreeting + kServerProof;
  out.clear();
  for (std::size_t i = 0; i < flights.size(); ++i) {
    ASSERT_FALSE(client.done());
    ASSERT_TRUE(client.feed(std::span(flights).subspan(i, 1), out).ok());
  }
  EXPECT_TRUE(client.done());
  EXPECT_EQ(client.wanted(), 0U);
}

TEST(HandshakeTest, payload_behind_the_handshake_is_not_consumed) {
  ServerHandshake server = make_server();
  Bytes out;
  const auto served = server.feed(kAnswer + bytes_of("payload"), out);
  ASSERT_TRUE(served.ok());
  EXPECT_EQ(served.value(), kAnswer.size());

  ClientHandshake client = make_client();
  const auto answered = client.feed(kGreeting + kServerProof + bytes_of("payload"), out);
  ASSERT_TRUE(answered.ok());
  EXPECT_EQ(answered.value(), kGreeting.size() + kServerProof.size());
  EXPECT_TRUE(client.done());
  const auto later = client.feed(bytes_of("more"), out);
  ASSERT_TRUE(later.ok());
  EXPECT_EQ(later.value(), 0U);
}

TEST(HandshakeTest, hellos_of_every_allowed_length_pass) {
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, kMaxHelloBytes}) {
    ServerHandshake server = make_server();
    ClientHandshake client(kSecret, kClientNonce, Bytes(length, std::byte{7}));
    Bytes to_server;
    Bytes to_client;
    ASSERT_TRUE(client.feed(server.greeting(), to_server).ok());
    ASSERT_TRUE(server.feed(to_server, to_client).ok());
    ASSERT_TRUE(client.feed(to_client, to_server).ok());
    EXPECT_TRUE(server.done() && client.done());
    EXPECT_EQ(server.hello().size(), length);
  }
}

TEST(HandshakeTest, wrong_secret_is_refused_and_the_client_is_told) {
  ServerHandshake server = make_server("another secret");
  Bytes to_client;
  const auto fed = server.feed(kAnswer, to_client);
  ASSERT_FALSE(fed.ok());
  EXPECT_EQ(fed.status().code(), ErrorCode::kPeerFailed);
  EXPECT_NE(fed.status().message().find("secret"), std::string::npos);
  EXPECT_EQ(to_client, Bytes(32));

  ClientHandshake client = make_client();
  Bytes out;
  ASSERT_TRUE(client.feed(kGreeting, out).ok());
  const auto reported = client.feed(to_client, out);
  ASSERT_FALSE(reported.ok());
  EXPECT_NE(reported.status().message().find("refused"), std::string::npos);
}

TEST(HandshakeTest, client_refuses_a_server_that_does_not_know_the_secret) {
  Bytes forged = kServerProof;
  forged.back() ^= std::byte{1};
  const Status status = feed_fails(make_client(), kGreeting + forged);
  EXPECT_EQ(status.code(), ErrorCode::kPeerFailed);
  EXPECT_NE(status.message().find("secret"), std::string::npos);
}

TEST(HandshakeTest, a_proof_cannot_be_reflected) {
  EXPECT_FALSE(feed_fails(make_client(), kGreeting + kClientProof).ok());
  // A server's proof and nonce, sent back to the server as if they were a client's.
  EXPECT_FALSE(feed_fails(make_server(),
                          bytes_of("lightcc\x01") + nonce_bytes(kClientNonce) + from_hex("0600") +
                              bytes_of("rank 3") + kServerProof)
                   .ok());
}

TEST(HandshakeTest, a_recorded_answer_is_worthless_under_another_nonce) {
  EXPECT_FALSE(feed_fails(ServerHandshake(kSecret, counting_from(1)), kAnswer).ok());
  ClientHandshake client(kSecret, counting_from(0x81), bytes_of("rank 3"));
  EXPECT_FALSE(feed_fails(std::move(client), kGreeting + kServerProof).ok());
}

TEST(HandshakeTest, any_changed_byte_is_refused) {
  for (std::size_t i = 0; i < kAnswer.size(); ++i) {
    Bytes changed = kAnswer;
    changed[i] ^= std::byte{0x40};
    ServerHandshake server = make_server();
    Bytes out;
    const auto fed = server.feed(changed, out);
    // A longer hello just waits for the rest, which will not fit the proof.
    EXPECT_FALSE(server.done()) << "byte " << i;
    EXPECT_TRUE(!fed.ok() || i == 40) << "byte " << i;
  }
}

TEST(HandshakeTest, garbage_is_refused_at_its_first_byte) {
  const Status status = feed_fails(make_server(), bytes_of("G"));
  EXPECT_EQ(status.code(), ErrorCode::kPeerFailed);
  EXPECT_FALSE(feed_fails(make_client(), bytes_of("H")).ok());
  EXPECT_FALSE(feed_fails(make_server(), Bytes(1, std::byte{0x16})).ok());  // TLS
}

TEST(HandshakeTest, another_version_is_named) {
  const Status status = feed_fails(make_client(), bytes_of("lightcc\x02"));
  EXPECT_EQ(status.code(), ErrorCode::kPeerFailed);
  EXPECT_NE(status.message().find("version 2"), std::string::npos);
  EXPECT_FALSE(feed_fails(make_server(), bytes_of("lightcc\x02")).ok());
}

TEST(HandshakeTest, truncated_flights_never_finish) {
  for (std::size_t length = 0; length < kAnswer.size(); ++length) {
    ServerHandshake server = make_server();
    Bytes out;
    ASSERT_TRUE(server.feed(std::span(kAnswer).first(length), out).ok());
    EXPECT_FALSE(server.done());
    EXPECT_TRUE(out.empty());
  }
}

TEST(HandshakeTest, oversized_hello_is_refused_before_it_is_read) {
  const Bytes header =
      bytes_of("lightcc\x01") + nonce_bytes(kClientNonce) + from_hex("0102");  // 513
  const Status status = feed_fails(make_server(), header);
  EXPECT_EQ(status.code(), ErrorCode::kPeerFailed);
  EXPECT_NE(status.message().find("513"), std::string::npos);

  ClientHandshake client(kSecret, kClientNonce, Bytes(kMaxHelloBytes + 1));
  Bytes out;
  EXPECT_EQ(client.feed(kGreeting, out).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(out.empty());
}

TEST(HandshakeTest, a_failed_handshake_gets_no_second_try) {
  Bytes wrong = kAnswer;
  wrong.back() ^= std::byte{1};
  ServerHandshake server = make_server();
  Bytes out;
  ASSERT_FALSE(server.feed(wrong, out).ok());
  EXPECT_FALSE(server.feed(kAnswer, out).ok());
  EXPECT_FALSE(server.done());
}

TEST(HandshakeTest, nonces_are_fresh) {
  const auto first = make_nonce();
  const auto second = make_nonce();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first.value(), second.value());
}

}  // namespace
}  // namespace lightcc::handshake_test
