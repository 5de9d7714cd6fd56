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
using std::chrono::nanoseconds;

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

TEST(FaultSpec, nothing_means_no_faults) {
  const FaultSpec spec = parsed("");
  EXPECT_EQ(spec.seed, 1U);
  EXPECT_EQ(spec.impairment.loss, 0);
  EXPECT_EQ(spec.impairment.dark_paths, 0U);
  EXPECT_EQ(spec.impairment.delay, Duration{});
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

TEST(FaultSpec, times_have_four_units) {
  EXPECT_EQ(parsed("delay=250ns").impairment.delay, nanoseconds(250));
  EXPECT_EQ(parsed("delay=1.5us").impairment.delay, nanoseconds(1500));
  EXPECT_EQ(parsed("delay=0.25ms").impairment.delay, microseconds(250));
  EXPECT_EQ(parsed("delay=2s").impairment.delay, milliseconds(2000));
  EXPECT_EQ(parsed("delay=0ms").impairment.delay, Duration{});
}

TEST(FaultSpec, counts_have_three_units_or_none) {
  EXPECT_DOUBLE_EQ(parsed("rate=9600:1").impairment.bits_per_s, 9600);
  EXPECT_DOUBLE_EQ(parsed("rate=56k:1").impairment.bits_per_s, 56e3);
  EXPECT_DOUBLE_EQ(parsed("rate=1.5m:1").impairment.bits_per_s, 1.5e6);
  EXPECT_DOUBLE_EQ(parsed("rate=400g:1").impairment.bits_per_s, 400e9);
}

TEST(FaultSpec, numbers_are_decimal_or_hexadecimal) {
  EXPECT_EQ(parsed("dark=10").impairment.dark_paths, 10U);
  EXPECT_EQ(parsed("dark=0x10").impairment.dark_paths, 16U);
  EXPECT_EQ(parsed("dark=0xffffffffffffffff").impairment.dark_paths, ~std::uint64_t{0});
  EXPECT_EQ(parsed("seed=18446744073709551615").seed, ~std::uint64_t{0});
}

TEST(FaultSpec, shares_reach_from_0_to_1) {
  EXPECT_DOUBLE_EQ(parsed("loss=0").impairment.loss, 0);
  EXPECT_DOUBLE_EQ(parsed("loss=1").impairment.loss, 1);
  EXPECT_DOUBLE_EQ(parsed("loss=1e-6").impairment.loss, 1e-6);
}

TEST(FaultSpec, the_last_of_two_counts) {
  EXPECT_DOUBLE_EQ(parsed("loss=0.5,seed=3,loss=0.25").impairment.loss, 0.25);
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

TEST(FaultSpec, empty_items_are_refused) {
  EXPECT_NE(refusal(",").find("''"), std::string::npos);
  EXPECT_NE(refusal("loss=0.1,,seed=1").find("''"), std::string::npos);
  EXPECT_NE(refusal("loss=0.1;seed=1").find("'loss=0.1;seed=1'"), std::string::npos);
}

}  // namespace
}  // namespace harp::fault_spec_test
