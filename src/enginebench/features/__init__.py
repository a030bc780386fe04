"""Features, which can be removed: each folder has its verbs, the jobs of its children, its statistics and its sections.

The kernel finds the folders and what they bring (`core/features.py`); a feature imports the kernel, and no other
feature. To lift one out, delete its folder, and run `make tables`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what features bring, as type checkers see and check it; written by tools/option_tables.py
    from enginebench.core import hooks as _hooks
    from enginebench.features.deliver.planning import plan_delivery as _deliver_BundlePlan
    from enginebench.features.deliver.verb import deliver as deliver
    from enginebench.features.deliver.verb import deliver_also as _deliver_BundlePrinter
    from enginebench.features.deliver.verb import deliver_run as _deliver_BundleWriter
    from enginebench.features.deliver.writing import check_free as _deliver_BundlePlace
    from enginebench.features.load.verb import load as load
    from enginebench.features.load.verb import report_any as _load_FolderReport
    from enginebench.features.load.winners import bench_configuration as _load_LoadCheck
    from enginebench.features.load.winners import load_row as _load_LoadTrial
    from enginebench.features.load.winners import load_winners as _load_RunFinished
    from enginebench.features.locate.locating import locate_faults as _locate_FaultLocator
    from enginebench.features.locate.sections import list_located as _locate_DriftSections
    from enginebench.features.roofline.limits import bound_model as _roofline_ModelBound
    from enginebench.features.roofline.limits import bound_results as _roofline_RunFinished
    from enginebench.features.roofline.limits import limit_layers as _roofline_LayerLimits
    from enginebench.features.roofline.verb import roofline as roofline
    from enginebench.features.sweep.ray_fleet import ask_nodes as _sweep_NodeQuery
    from enginebench.features.sweep.reading import fetch_results_folder as _sweep_HistoryFolder
    from enginebench.features.sweep.reading import holds_sweep as _sweep_FolderMatch
    from enginebench.features.sweep.reporting import report_any as _sweep_FolderReport
    from enginebench.features.sweep.verb import sweep as sweep
    from enginebench.features.trtexec.difference import explain_difference as _trtexec_ToolDifference
    from enginebench.features.trtexec.executable import choose_trtexec as _trtexec_TrtexecChoice
    from enginebench.features.trtexec.folder import is_trtexec_folder as _trtexec_FolderMatch
    from enginebench.features.trtexec.reporting import read_any as _trtexec_FileReader
    from enginebench.features.trtexec.reporting import report_any as _trtexec_FolderReport
    from enginebench.features.trtexec.verb import parse_layers as parse_layers
    from enginebench.features.trtexec.verb import parse_log as parse_log
    from enginebench.features.trtexec.verb import parse_profile as parse_profile
    from enginebench.features.trtexec.verb import parse_times as parse_times
    from enginebench.features.tune.region_graphs import check_region_engine as _tune_RegionEngineCheck
    from enginebench.features.tune.region_graphs import exclude_slow_regions as _tune_SlowRegions
    from enginebench.features.tune.session import tune_run as _tune_SettingsSearch
    from enginebench.features.tune.verb import tune as tune
    from enginebench.features.versions.bisect import bisect as bisect
    from enginebench.features.versions.env import list_environments as list_environments
    from enginebench.features.versions.env import make_environment as make_environment
    from enginebench.features.versions.env import remove_environment as remove_environment
    from enginebench.features.versions.upgrade import diff_environments as _versions_EnvironmentDiff
    from enginebench.features.versions.upgrade import format_changes as _versions_DiffNotes
    from enginebench.features.versions.upgrade import pair_layers as _versions_LayerPairing

    _deliver_BundlePlace_: _hooks.BundlePlace = _deliver_BundlePlace
    _deliver_BundlePlan_: _hooks.BundlePlan = _deliver_BundlePlan
    _deliver_BundlePrinter_: _hooks.BundlePrinter = _deliver_BundlePrinter
    _deliver_BundleWriter_: _hooks.BundleWriter = _deliver_BundleWriter
    _load_FolderReport_: _hooks.FolderReport = _load_FolderReport
    _load_LoadCheck_: _hooks.LoadCheck = _load_LoadCheck
    _load_LoadTrial_: _hooks.LoadTrial = _load_LoadTrial
    _load_RunFinished_: _hooks.RunFinished = _load_RunFinished
    _locate_DriftSections_: _hooks.DriftSections = _locate_DriftSections
    _locate_FaultLocator_: _hooks.FaultLocator = _locate_FaultLocator
    _roofline_LayerLimits_: _hooks.LayerLimits = _roofline_LayerLimits
    _roofline_ModelBound_: _hooks.ModelBound = _roofline_ModelBound
    _roofline_RunFinished_: _hooks.RunFinished = _roofline_RunFinished
    _sweep_FolderMatch_: _hooks.FolderMatch = _sweep_FolderMatch
    _sweep_FolderReport_: _hooks.FolderReport = _sweep_FolderReport
    _sweep_HistoryFolder_: _hooks.HistoryFolder = _sweep_HistoryFolder
    _sweep_NodeQuery_: _hooks.NodeQuery = _sweep_NodeQuery
    _trtexec_FileReader_: _hooks.FileReader = _trtexec_FileReader
    _trtexec_FolderMatch_: _hooks.FolderMatch = _trtexec_FolderMatch
    _trtexec_FolderReport_: _hooks.FolderReport = _trtexec_FolderReport
    _trtexec_ToolDifference_: _hooks.ToolDifference = _trtexec_ToolDifference
    _trtexec_TrtexecChoice_: _hooks.TrtexecChoice = _trtexec_TrtexecChoice
    _tune_RegionEngineCheck_: _hooks.RegionEngineCheck = _tune_RegionEngineCheck
    _tune_SettingsSearch_: _hooks.SettingsSearch = _tune_SettingsSearch
    _tune_SlowRegions_: _hooks.SlowRegions = _tune_SlowRegions
    _versions_DiffNotes_: _hooks.DiffNotes = _versions_DiffNotes
    _versions_EnvironmentDiff_: _hooks.EnvironmentDiff = _versions_EnvironmentDiff
    _versions_LayerPairing_: _hooks.LayerPairing = _versions_LayerPairing
