// SPDX-License-Identifier: Apache-2.0

// Trainers and workers of a simulated job: the production sessions and schedules, with a model of
// the hardware in place of the engine.
#ifndef WAYBILL_CORE_SIMULATE_RANKS_H_
#define WAYBILL_CORE_SIMULATE_RANKS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/protocol/receive_schedule.h"
#include "core/protocol/send_schedule.h"
#include "core/protocol/trainer_session.h"
#include "core/protocol/worker_session.h"
#include "core/simulate/world.h"

namespace waybill::simulate {

class SendingRank final : public TrainerHost, public ControlPlane::Endpoint {
 public:
  // Both outlive the rank. `manifest`: encoded.
  SendingRank(World* world, RankResult* result, EncodedManifest manifest, const proto::Nics& nics);

  void Join();
  void Publish();

  // ControlPlane::Endpoint.
  void OnOpen() override;
  void OnMessage(const proto::ControllerMessage& message) override;
  void OnClose() override;

  // TrainerHost.
  void OpenStream() override { connection_ = world_.control.Open(this); }
  void CloseStream() override { world_.control.CloseByRank(connection_); }
  void Send(proto::RankMessage message) override {
    world_.control.SendToController(connection_, std::move(message));
  }
  void Tell(Notice notice) override;
  proto::RankReport MakeReport() const override { return {}; }
  absl::StatusOr<proto::Offers> SetPlan(TermPlan plan) override;
  absl::Status Connect(const std::string& group, const proto::Connect& connect) override;
  absl::Status SetBufferAddress(const std::string&, uint32_t, uint32_t,
                                const proto::Buffer&) override {
    return absl::OkStatus();
  }
  absl::Status Start(const std::string& group, const UpdateId& update,
                     const PublishCommand& publish, const proto::Start& start) override;
  void Abort(const std::string& group, const UpdateId& update) override;
  void StopNow(const std::string& group) override;
  void ForgetGroup(const std::string&) override {}

 private:
  struct Lane {
    uint32_t sender_nic = 0;
    uint32_t receiver_nic = 0;
    std::vector<Port*> path;
  };
  struct Peer {
    PairTraffic traffic;
    std::vector<Lane> lanes;
    std::vector<LanePath> paths;
    uint32_t first_lane = 0;
    uint32_t first_piece = 0;
    uint32_t to_digest = 0;  // Pieces whose digests are not taken.
  };
  // Some of the bytes of a peer, which are handled at a time.
  struct Piece {
    uint32_t peer = 0;
    uint64_t bytes = 0;
    uint64_t carried_bytes = 0;  // The part of them that travels.
    uint64_t writes = 0;
    double stage_seconds = 0;
    double digest_seconds = 0;
    SendWay way = SendWay::kDirect;
  };

  void Call();  // After each call of the session.
  void CutIntoPieces(uint32_t peer);
  void AddPieces(uint32_t peer, SendWay way, uint64_t bytes, uint64_t writes, double seconds);
  double StageSeconds(const PairTraffic& traffic, SendWay way) const;
  double EncodeSeconds(const PairTraffic& traffic) const;
  void PublishNow();
  void Run();
  void Execute(const SendCommand& command);
  void Work(double seconds, Threads::Done done);
  void DigestApart();
  void Post(const SendCommand& command);
  void Deliver(uint32_t id);
  void Carry(SendLane lane, uint64_t bytes, uint64_t writes, std::function<void()> landed);

  World& world_;
  RankResult& result_;
  const uint32_t rank_;
  TrainerSession session_;
  Alarm alarm_;
  ConnectionId connection_ = 0;
  Threads stagers_;
  Threads progress_;
  SlotPool slots_;
  SendSchedule schedule_;
  std::vector<Peer> peers_;
  std::vector<Piece> pieces_;
  UpdateId update_;
  std::string group_;
  uint32_t to_copy_ = 0;  // Threads that copy the weights.
  double wire_begin_ = -1;
  bool running_ = false;
  bool again_ = false;
};

class ReceivingRank final : public WorkerHost, public ControlPlane::Endpoint {
 public:
  // Both outlive the rank. `manifest`: encoded.
  ReceivingRank(World* world, RankResult* result, EncodedManifest manifest,
                const proto::Nics& nics);

  void Join();

  // --- from the trainers, and from workers that relay ---

  using SenderId = std::pair<Role, uint32_t>;
  // A piece has landed. Pieces of a sender are numbered from 0.
  void OnPiece(SenderId sender, uint32_t piece, uint64_t bytes);
  // The last immediate of a sender's lane has come.
  void OnLaneEnd(SenderId sender, uint32_t lane, uint32_t sequence);
  Threads& progress() { return progress_; }

  // ControlPlane::Endpoint.
  void OnOpen() override;
  void OnMessage(const proto::ControllerMessage& message) override;
  void OnClose() override;

  // WorkerHost.
  void OpenStream() override { connection_ = world_.control.Open(this); }
  void CloseStream() override { world_.control.CloseByRank(connection_); }
  void Send(proto::RankMessage message) override {
    world_.control.SendToController(connection_, std::move(message));
  }
  void Tell(Notice notice) override;
  proto::RankReport MakeReport() const override { return {}; }
  absl::StatusOr<proto::Offers> SetPlan(TermPlan plan) override;
  absl::Status Connect(const std::string& group, const proto::Connect& connect) override;
  void Prepare(const UpdateId& update, bool digests_off, absl::Time deadline) override;
  void Continue(const UpdateId&, const UpdateId&) override {}
  void LoseSender(uint32_t) override {}
  void Commit(const UpdateId& update) override;
  void Abort(const UpdateId& update, bool begun) override;
  uint64_t shown_version() const override { return shown_; }
  absl::Status SetBufferAddress(const std::string&, uint32_t, uint32_t,
                                const proto::Buffer&) override {
    return absl::OkStatus();
  }
  absl::Status StartSending(const std::string&, const UpdateId&, const proto::Start&) override {
    return absl::UnimplementedError("a simulated worker lends nothing, and relays by itself");
  }
  void StopRelaying(uint64_t, uint32_t) override {}
  void ForgetGroup(const std::string&) override {}

 private:
  struct Sender {
    SenderId id;
    uint32_t first_piece = 0;      // As the schedule counts chunks.
    std::vector<uint64_t> pieces;  // Their bytes, once they are here.
    uint64_t to_come = 0;          // Pieces.
    bool encodes = false;          // They hold what changed; the rest is copied.
    size_t digesting = 0;          // Pieces of the wave that runs.
  };

  // What this worker relays to another: below the protocol, piece by piece in the order of arrival.
  struct Relay {
    uint32_t worker = 0;
    uint64_t bytes = 0;
    uint64_t writes = 0;
    uint64_t pieces = 0;
    uint64_t sent = 0;  // Pieces.
  };

  void Call();
  void AddSender(SenderId id, uint64_t pieces, std::vector<ReceiveSender>& senders);
  void Run();
  void Execute(const ReceiveCommand& command);
  void Digest(uint32_t sender, absl::Span<const uint32_t> pieces);
  void Show(const UpdateId& update);
  void FindRelays();
  void PassOn(const Sender& sender, absl::Span<const uint32_t> pieces);
  void RelayPiece(uint32_t relay, uint32_t piece, uint64_t bytes, uint64_t writes);
  void SendPiece(uint32_t worker, uint32_t piece, uint64_t bytes, uint64_t writes);

  World& world_;
  RankResult& result_;
  const uint32_t rank_;
  WorkerSession session_;
  Alarm alarm_;
  ConnectionId connection_ = 0;
  Threads verifiers_;
  Threads progress_;
  ReceiveSchedule schedule_;
  std::vector<Sender> senders_;  // As the schedule counts them.
  std::map<SenderId, uint32_t> index_of_;
  Threads relayers_;
  std::vector<Relay> relays_;
  uint64_t direct_bytes_ = 0;  // What trainers send it.
  uint64_t passed_on_ = 0;     // Of that, what may be relayed.
  uint32_t next_nic_ = 0;
  double ready_at_ = 0;
  double voted_at_ = 0;
  uint64_t shown_ = 0;
};

// Takes a message to its worker by the job's carrier. `progress` is the sender's thread that posts.
// Calls posted(seconds) when this thread has worked for so long, if it has to, and then landed().
void Carry(World& world, Threads& progress, Transfer transfer,
           std::function<void(double seconds)> posted, std::function<void()> landed);

}  // namespace waybill::simulate

#endif  // WAYBILL_CORE_SIMULATE_RANKS_H_
