"""The Ray of one sweep: a closed folder that is gone afterwards."""

from __future__ import annotations

import stat

import ray

from sweeper.launch.cluster import ray_for_one_sweep


def test_nobody_else_reaches_the_session_files_while_ray_runs(tmp_path):
    link = tmp_path / "ray"
    with ray_for_one_sweep(link):
        folder = link.readlink()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert ray.cluster_resources()["CPU"] >= 1
        assert list(folder.glob("*/session_*/logs")), "Ray's own folder lies inside the closed one"
    assert not folder.exists()
    assert not link.is_symlink()
