// SPDX-License-Identifier: Apache-2.0

// What ThreadSanitizer cannot see: gRPC hands messages and callbacks from thread to thread by locks
// in its own library, which is not instrumented. Only what lies in its headers' templates and in
// generated messages is left out; our own state behind them is watched.
//
// gRPC ends its own threads in the background once its last object is gone, and a test may end
// before it has joined them.
extern "C" const char* __tsan_default_suppressions() {
  return "race:^grpc::\n"
         "race:^std::_Function_handler<*, grpc::\n"
         "race:^waybill::proto::\n"
         "race:^google::protobuf::\n"
         "race:~Connection\n"
         "thread:^grpc_core::Thread::\n";
}
