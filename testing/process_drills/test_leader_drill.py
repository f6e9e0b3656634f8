# SPDX-License-Identifier: Apache-2.0
"""A few kills of the leading controller; `leader_drill` does as many as asked, and prints the times."""

import etcd_server
import leader_drill
import pytest

pytestmark = pytest.mark.skipif(
    not etcd_server.is_installed(), reason="no etcd here; tools/setup installs it"
)


def test_a_standby_takes_over_and_the_next_publish_commits():
    assert len(leader_drill.drill(kills=3)) == 3


def test_a_job_goes_on_after_its_etcd_was_away_in_the_middle_of_an_update():
    with leader_drill.job_with_etcd(seed=1) as (job, etcd):
        etcd.close()
        job.begin_publish()
        told = job.processes["controller 0"].wait_for("deposed", 30)
        assert "it is not known whether a decision was recorded: etcd 127.0.0.1:" in told["error"]
        etcd.start()
        job.end_publish()
        job.publish_until_committed()
        job.check()


def test_a_job_does_not_notice_that_its_etcd_was_away_between_updates():
    with leader_drill.job_with_etcd(seed=1) as (job, etcd):
        etcd.close()
        etcd.start()
        assert job.publish_until_committed() == 1
        job.check()
        assert job.processes["controller 0"].count("deposed") == 0
