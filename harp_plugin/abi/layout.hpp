// The numbers of the ABI once more, as assertions: sizes, offsets, and what must be a plain C
// layout.
//
// Only for 64-bit targets, like NCCL itself. Include it where a table is exported or loaded.
#pragma once

#include <cstddef>
#include <type_traits>

#include "abi/tables.hpp"

namespace harp::abi {

// Size and offset in bytes; OFFSET(struct, field, bytes).
#define HARP_SIZE(type, bytes)                                       \
  static_assert(sizeof(type) == (bytes), #type " has another size"); \
  static_assert(std::is_standard_layout_v<type> && std::is_trivial_v<type>, #type " is not plain")
#define HARP_OFFSET(type, field, bytes) \
  static_assert(offsetof(type, field) == (bytes), #type "::" #field " is elsewhere")
// A table is a name and then pointers; the index of an entry is what NCCL calls.
#define HARP_TABLE(type, entries) HARP_SIZE(type, (entries) * sizeof(void*))
#define HARP_ENTRY(type, field, index) HARP_OFFSET(type, field, (index) * sizeof(void*))

HARP_SIZE(Result, 4);
HARP_SIZE(DataType, 4);
HARP_SIZE(DeviceType, 4);
HARP_SIZE(LogLevel, 4);
HARP_SIZE(CommConfig, 4);

HARP_SIZE(DeviceHandle, 32);
HARP_OFFSET(DeviceHandle, type, 0);
HARP_OFFSET(DeviceHandle, version, 4);
HARP_OFFSET(DeviceHandle, handle, 8);
HARP_OFFSET(DeviceHandle, size, 16);
HARP_OFFSET(DeviceHandle, needs_proxy_progress, 24);

HARP_SIZE(CommAttributes, 16);
HARP_SIZE(NetAttributes, 44);
HARP_OFFSET(NetAttributes, send, 0);
HARP_OFFSET(NetAttributes, recv, 16);
HARP_OFFSET(NetAttributes, op, 32);
HARP_OFFSET(NetAttributes, algo, 36);
HARP_OFFSET(NetAttributes, proto, 40);

HARP_SIZE(VirtualDeviceV9, 20);
HARP_OFFSET(VirtualDeviceV9, devices, 4);
HARP_SIZE(VirtualDeviceV12, 36);
HARP_OFFSET(VirtualDeviceV12, devices, 4);

HARP_SIZE(PropertiesV4, 40);
HARP_OFFSET(PropertiesV4, name, 0);
HARP_OFFSET(PropertiesV4, pci_path, 8);
HARP_OFFSET(PropertiesV4, guid, 16);
HARP_OFFSET(PropertiesV4, ptr_support, 24);
HARP_OFFSET(PropertiesV4, speed_mbps, 28);
HARP_OFFSET(PropertiesV4, port, 32);
HARP_OFFSET(PropertiesV4, max_comms, 36);

HARP_SIZE(PropertiesV6, 48);
HARP_OFFSET(PropertiesV6, ptr_support, 24);
HARP_OFFSET(PropertiesV6, speed_mbps, 28);
HARP_OFFSET(PropertiesV6, port, 32);
HARP_OFFSET(PropertiesV6, latency_us, 36);
HARP_OFFSET(PropertiesV6, max_comms, 40);
HARP_OFFSET(PropertiesV6, max_recvs, 44);

HARP_SIZE(PropertiesV7, 56);
HARP_OFFSET(PropertiesV7, max_recvs, 44);
HARP_OFFSET(PropertiesV7, device_type, 48);
HARP_OFFSET(PropertiesV7, device_version, 52);

HARP_SIZE(PropertiesV8, 64);
HARP_OFFSET(PropertiesV8, ptr_support, 24);
HARP_OFFSET(PropertiesV8, reg_is_global, 28);
HARP_OFFSET(PropertiesV8, speed_mbps, 32);
HARP_OFFSET(PropertiesV8, port, 36);
HARP_OFFSET(PropertiesV8, latency_us, 40);
HARP_OFFSET(PropertiesV8, max_comms, 44);
HARP_OFFSET(PropertiesV8, max_recvs, 48);
HARP_OFFSET(PropertiesV8, device_type, 52);
HARP_OFFSET(PropertiesV8, device_version, 56);

// From version 9 on a struct begins like the one before it.
#define HARP_PROPERTIES_SINCE_V9(type)   \
  HARP_OFFSET(type, reg_is_global, 28);  \
  HARP_OFFSET(type, force_flush, 32);    \
  HARP_OFFSET(type, speed_mbps, 36);     \
  HARP_OFFSET(type, port, 40);           \
  HARP_OFFSET(type, latency_us, 44);     \
  HARP_OFFSET(type, max_comms, 48);      \
  HARP_OFFSET(type, max_recvs, 52);      \
  HARP_OFFSET(type, device_type, 56);    \
  HARP_OFFSET(type, device_version, 60); \
  HARP_OFFSET(type, parts, 64)

HARP_SIZE(PropertiesV10, 104);
HARP_PROPERTIES_SINCE_V9(PropertiesV10);
HARP_OFFSET(PropertiesV10, max_p2p_bytes, 88);
HARP_OFFSET(PropertiesV10, max_coll_bytes, 96);

HARP_SIZE(PropertiesV11, 112);
HARP_PROPERTIES_SINCE_V9(PropertiesV11);
HARP_OFFSET(PropertiesV11, max_p2p_bytes, 88);
HARP_OFFSET(PropertiesV11, max_coll_bytes, 96);
HARP_OFFSET(PropertiesV11, max_multi_request, 104);

HARP_SIZE(PropertiesV12, 128);
HARP_PROPERTIES_SINCE_V9(PropertiesV12);
HARP_OFFSET(PropertiesV12, max_p2p_bytes, 104);
HARP_OFFSET(PropertiesV12, max_coll_bytes, 112);
HARP_OFFSET(PropertiesV12, max_multi_request, 120);
HARP_OFFSET(PropertiesV12, rail, 124);
HARP_OFFSET(PropertiesV12, plane, 126);

// The first eight entries never moved.
#define HARP_ENTRIES_OF_ALL(type)      \
  HARP_ENTRY(type, name, 0);           \
  HARP_ENTRY(type, init, 1);           \
  HARP_ENTRY(type, devices, 2);        \
  HARP_ENTRY(type, get_properties, 3); \
  HARP_ENTRY(type, listen, 4);         \
  HARP_ENTRY(type, connect, 5);        \
  HARP_ENTRY(type, accept, 6);         \
  HARP_ENTRY(type, reg_mr, 7)
// Version 6 put reg_mr_dma_buf before dereg_mr, which moved the rest by one.
#define HARP_ENTRIES_OF_DATA(type, dereg)    \
  HARP_ENTRY(type, dereg_mr, (dereg));       \
  HARP_ENTRY(type, isend, (dereg) + 1);      \
  HARP_ENTRY(type, irecv, (dereg) + 2);      \
  HARP_ENTRY(type, iflush, (dereg) + 3);     \
  HARP_ENTRY(type, test, (dereg) + 4);       \
  HARP_ENTRY(type, close_send, (dereg) + 5); \
  HARP_ENTRY(type, close_recv, (dereg) + 6); \
  HARP_ENTRY(type, close_listen, (dereg) + 7)
#define HARP_ENTRIES_SINCE_V7(type)    \
  HARP_ENTRY(type, reg_mr_dma_buf, 8); \
  HARP_ENTRY(type, get_device_mr, 17); \
  HARP_ENTRY(type, irecv_consumed, 18)

HARP_TABLE(NetV4, 16);
HARP_ENTRIES_OF_ALL(NetV4);
HARP_ENTRIES_OF_DATA(NetV4, 8);

HARP_TABLE(NetV5, 16);
HARP_ENTRIES_OF_ALL(NetV5);
HARP_ENTRIES_OF_DATA(NetV5, 8);

HARP_TABLE(NetV6, 17);
HARP_ENTRIES_OF_ALL(NetV6);
HARP_ENTRIES_OF_DATA(NetV6, 9);
HARP_ENTRY(NetV6, reg_mr_dma_buf, 8);

HARP_TABLE(NetV7, 19);
HARP_ENTRIES_OF_ALL(NetV7);
HARP_ENTRIES_OF_DATA(NetV7, 9);
HARP_ENTRIES_SINCE_V7(NetV7);

HARP_TABLE(NetV8, 19);
HARP_ENTRIES_OF_ALL(NetV8);
HARP_ENTRIES_OF_DATA(NetV8, 9);
HARP_ENTRIES_SINCE_V7(NetV8);

HARP_TABLE(NetV9, 20);
HARP_ENTRIES_OF_ALL(NetV9);
HARP_ENTRIES_OF_DATA(NetV9, 9);
HARP_ENTRIES_SINCE_V7(NetV9);
HARP_ENTRY(NetV9, make_virtual_device, 19);

HARP_TABLE(NetV10, 20);
HARP_ENTRIES_OF_ALL(NetV10);
HARP_ENTRIES_OF_DATA(NetV10, 9);
HARP_ENTRIES_SINCE_V7(NetV10);
HARP_ENTRY(NetV10, make_virtual_device, 19);

HARP_TABLE(NetV11, 22);
HARP_ENTRIES_OF_ALL(NetV11);
HARP_ENTRIES_OF_DATA(NetV11, 9);
HARP_ENTRIES_SINCE_V7(NetV11);
HARP_ENTRY(NetV11, make_virtual_device, 19);
HARP_ENTRY(NetV11, finalize, 20);
HARP_ENTRY(NetV11, set_net_attributes, 21);

HARP_TABLE(NetV12, 22);
HARP_ENTRIES_OF_ALL(NetV12);
HARP_ENTRIES_OF_DATA(NetV12, 9);
HARP_ENTRIES_SINCE_V7(NetV12);
HARP_ENTRY(NetV12, make_virtual_device, 19);
HARP_ENTRY(NetV12, finalize, 20);
HARP_ENTRY(NetV12, set_net_attributes, 21);

#undef HARP_ENTRIES_SINCE_V7
#undef HARP_ENTRIES_OF_DATA
#undef HARP_ENTRIES_OF_ALL
#undef HARP_PROPERTIES_SINCE_V9
#undef HARP_ENTRY
#undef HARP_TABLE
#undef HARP_OFFSET
#undef HARP_SIZE

}  // namespace harp::abi
