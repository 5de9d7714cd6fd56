#include "datapath/fault_spec.hpp"

#include <chrono>
#include <cstdint>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace harp::fault_spec_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

FaultSpec parsed(std::string_view text) {
  std::string error;
  const auto spec = parse_fault_spec(text, &error);
  EXPECT_TRUE(spec) << text << ": " << error;
  EXPECT_EQ(error, "") << text;
  return spec.value_or(FaultSpec{});
}

/// What the error says; nothing where `text` is accepted.
std::string refusal(std::string_view text) {
  std::string error;
  return parse_fault_spec(text, &error) ? std::string() : error;
}

TEST(FaultSpec, every_name_sets_what_it_says) {
  const FaultSpec spec = parsed(
      "loss=0.01,duplicate=0.05,reorder=0.1:2ms,corrupt=0.02,delay=1ms,jitter=500us,rate=1g:64,"
      "policer=200m:64k,burst=0.001:32,dark=0x3,mtu=1400,seed=7");
  const ImpairmentConfig& link = spec.impairment;
  EXPECT_DOUBLE_EQ(link.loss, 0.01);
  EXPECT_DOUBLE_EQ(link.duplicate, 0.05);
  EXPECT_DOUBLE_EQ(link.detour, 0.1);
  EXPECT_EQ(link.detour_delay, milliseconds(2));
  EXPECT_DOUBLE_EQ(link.corrupt, 0.02);
  EXPECT_EQ(link.delay, milliseconds(1));
  EXPECT_EQ(link.jitter, microseconds(500));
  EXPECT_DOUBLE_EQ(link.bits_per_s, 1e9);
  EXPECT_EQ(link.queue_packets, 64U);
  EXPECT_DOUBLE_EQ(link.policed_bits_per_s, 200e6);
  EXPECT_DOUBLE_EQ(link.policer_burst_bytes, 64e3);
  EXPECT_DOUBLE_EQ(link.burst_start, 0.001);
  EXPECT_EQ(link.burst_packets, 32U);
  EXPECT_EQ(link.dark_paths, 3U);
  EXPECT_EQ(link.mtu_bytes, 1400U);
  EXPECT_EQ(spec.seed, 7U);
}

TEST(FaultSpec, bad_items_are_named_with_what_is_allowed) {
  std::istringstream words(
      "los=0.1 Loss=0.1 loss loss= =0.1 seed loss=1.01 loss=-0.1 loss=x loss=0.1x loss=nan "
      "loss=inf loss=0.001k duplicate=2 corrupt=1% delay=1 delay=ms delay=-1ms delay=1m "
      "delay=1e30s delay=3601s jitter=1min jitter=nanms reorder=0.1 reorder=0.1: reorder=:1ms "
      "reorder=2:1ms reorder=0.1:1 burst=0.1 burst=0.1:0 burst=0.1:-1 burst=0.1:x burst=2:8 "
      "rate=1g rate=1t:64 rate=1g: rate=1g:64k rate=-1:64 rate=1e30:64 policer=1g policer=:64k "
      "policer=1g:64x dark=0x dark=-1 dark=0x10000000000000000 dark=1.5 mtu=1k mtu= mtu=-1 "
      "seed=18446744073709551616 seed=0x1g ");
  std::vector<std::string> items(std::istream_iterator<std::string>(words), {});
  items.insert(items.end(), {" loss=0.1", "loss =0.1", "loss=0.1 ", "delay=1 ms"});
  for (const std::string& item : items) {
    const std::string error = refusal(item);
    EXPECT_NE(error.find("'" + item + "'"), std::string::npos) << item << ": " << error;
    EXPECT_NE(error.find("reorder=P:TIME"), std::string::npos) << item << ": " << error;
    // Between good ones the bad one is named, and no other.
    const std::string among = refusal("seed=2," + item + ",dark=1");
    EXPECT_EQ(among, error) << item;
  }
}

}  // namespace
}  // namespace harp::fault_spec_test
