// SPDX-License-Identifier: Apache-2.0

// A real etcd for a test, in a process of its own.
#ifndef WAYBILL_TESTING_ETCD_ETCD_PROCESS_H_
#define WAYBILL_TESTING_ETCD_ETCD_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>

namespace waybill {

// Listens on free ports of the loopback, keeps its data in the test's folder, and ends with this
// object, or with the test if that dies.
class EtcdProcess {
 public:
  // Returns null if this machine has no etcd; tools/setup installs it. A test fails if there is one
  // that does not answer within half a minute.
  static std::unique_ptr<EtcdProcess> Start();
  ~EtcdProcess() { Kill(); }

  const std::string& address() const { return address_; }  // "127.0.0.1:40123".

  // Ends it as kill -9 does.
  void Kill();
  // Starts it again after Kill(), with the data and the ports that it had.
  void Restart();

 private:
  EtcdProcess() = default;

  std::string folder_;
  std::string address_;
  std::string peer_address_;
  pid_t process_ = -1;
};

}  // namespace waybill

#endif  // WAYBILL_TESTING_ETCD_ETCD_PROCESS_H_
